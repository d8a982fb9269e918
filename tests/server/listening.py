"""The application behind a real socket, and OpenAI's SDK as its client."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import httpx
import openai
import uvicorn
from fastapi import FastAPI

from server.app import create_app
from server.serving_config import ServingConfig
from server.telemetry.telemetry import Telemetry
from tests.server.asgi import until
from tests.server.serving import KEY, serve_config, served


@asynccontextmanager
async def listening(config: ServingConfig | None = None, **limits: int) -> AsyncIterator[tuple[FastAPI, str]]:
    """The application behind uvicorn on a free port, ready. limits: of the scheduler."""
    telemetry = Telemetry()
    app = create_app(config or serve_config(), lambda: served(telemetry, **limits), telemetry)
    with socket.create_server(("127.0.0.1", 0)) as port:
        http = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=3))
        http.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # needs the main thread
        task = asyncio.create_task(http.serve(sockets=[port]))
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        async with httpx.AsyncClient() as client:

            async def ready() -> bool:
                try:
                    return (await client.get(f"{url}/health")).status_code == 200
                except httpx.HTTPError:
                    return False

            await until(ready, 30)
        try:
            yield app, f"{url}/v1"
        finally:
            http.should_exit = True
            await task


def sdk(url: str, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=30)
