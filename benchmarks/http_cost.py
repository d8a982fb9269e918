"""What HTTP, server-sent events and detokenising cost: the same prompts through a socket and straight into the engine,
in turns. The client reads in a process of its own, as it does in real life."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import uvicorn

from benchmarks.answers import Door
from benchmarks.datasets import Prompt
from benchmarks.http_door import HttpDoor
from benchmarks.interleave import BalancedOrders, units
from benchmarks.matrix import GREEDY, PRIME_TOKENS, Setting
from benchmarks.progress import progress
from benchmarks.samples import Spread
from benchmarks.stack import Stack, load_stack
from server.app import create_app
from server.serving_config import Served


async def http_cost(
    stack: Stack,
    door: HttpDoor,
    prompts: Sequence[Prompt],
    setting: Setting,
    concurrency: Sequence[int],
    max_tokens: int,
) -> dict[str, Any]:
    """Throughput through HTTP over throughput of the engine in process, by number of clients."""
    work = units(prompts, concurrency, groups=3)
    ratios: dict[int, list[float]] = {size: [] for size in concurrency}
    fields = {**GREEDY, **setting.fields}
    doors: list[Door] = [stack, door]
    for one in doors:
        await one.ask([prompts[0].text], fields, 16)
    orders = BalancedOrders()
    with progress("http", 2 * len(work)) as report:
        for unit in work:
            texts = [prompt.text for prompt in unit.prompts]
            await stack.ask(texts, fields, PRIME_TOKENS)
            rates = {}
            for one in orders.order(unit, doors):
                rates[one is door] = (await one.ask(texts, fields, max_tokens)).whole_rate
                report()
            ratios[unit.concurrency].append(rates[True] / rates[False])
            report(f"{unit.concurrency} at once: {ratios[unit.concurrency][-1]:.3f} of the engine's", steps=0)
    return {f"{size} clients": Spread.of(found) for size, found in ratios.items()}


@asynccontextmanager
async def open_behind_http(config: Path) -> AsyncIterator[tuple[Stack, HttpDoor]]:
    """A stack whose engine the application runs, and a door to the same engine through a socket of this machine."""
    stack = await load_stack(config)

    async def load() -> Served:
        return stack.served

    app = create_app(stack.config, load)
    with socket.create_server(("127.0.0.1", 0)) as port:
        http = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", log_config=None, access_log=False))
        http.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # Ctrl-C is ours
        task = asyncio.create_task(http.serve(sockets=[port]))
        key = stack.config.api_keys[0] if stack.config.api_keys else "none"
        door = HttpDoor(f"http://127.0.0.1:{port.getsockname()[1]}", stack.config.model, key)
        try:
            while (readiness := app.state.readiness).status != "ready":
                if readiness.error is not None:
                    raise readiness.error
                await asyncio.sleep(0.05)
            yield stack, door
        finally:
            door.close()
            http.should_exit = True
            await task
