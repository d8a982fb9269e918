"""The port answers before the model does."""

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch

from scheduler.engine import AsyncEngine
from server.app import create_app
from server.model_folders import Folders
from server.process import ServerProcess
from server.serving_config import Served
from server.settings_loading import load_settings
from server.telemetry.telemetry import Telemetry
from tests.server.serving import MODEL, chat_body, client_of, error_of, running, serve_config, served

CHAT = "/v1/chat/completions"


async def test_requests_get_503_until_the_first_forward_has_run() -> None:
    gate = asyncio.Event()

    async def load() -> Served:
        await gate.wait()
        return await served()

    app = create_app(serve_config(), load)
    async with app.router.lifespan_context(app), client_of(app) as client:
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "loading"
        assert "loaded" in health.json()["reason"]
        for response in (await client.post(CHAT, json=chat_body()), await client.get("/v1/models")):
            error_of(response, 503, code="service_unavailable")
            assert int(response.headers["retry-after"]) >= 1
        assert (await client.get("/metrics")).status_code == 200
        gate.set()
        await app.state.readiness._task
        assert (await client.get("/health")).status_code == 200
        assert (await client.post(CHAT, json=chat_body())).status_code == 200
        assert app.state.readiness._model.engine.stats().rounds > 0
    error_of(await client_of(app).post(CHAT, json=chat_body()), 503)


async def test_a_failed_load_is_told_without_its_details() -> None:
    async def load() -> Served:
        raise OSError("/secret/path is gone")

    app = create_app(serve_config(), load)
    async with app.router.lifespan_context(app), client_of(app) as client:
        await app.state.readiness._task
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "failed"
        assert "secret" not in health.text
        assert "secret" not in error_of(await client.post(CHAT, json=chat_body()), 503)
        assert isinstance(app.state.readiness.error, OSError)


async def test_stopping_while_loading_is_quick() -> None:
    async def load() -> Served:
        await asyncio.sleep(1000)
        raise AssertionError

    app = create_app(serve_config(), load, Telemetry())
    async with asyncio.timeout(5), app.router.lifespan_context(app):
        await asyncio.sleep(0)
    assert app.state.readiness.status == "stopping"


async def test_telemetry_ends_with_the_application() -> None:
    telemetry = Telemetry()
    app = create_app(serve_config(), served, telemetry)
    async with app.router.lifespan_context(app), client_of(app) as client:
        await app.state.readiness._task
        assert "slipstream_kv_blocks_limit" in (await client.get("/metrics")).text
    assert telemetry.exposition()[0] == b""


async def test_models_are_listed_and_retrieved_also_with_slashes() -> None:
    async with running(serve_config(aliases=("tiny",))) as (_, client):
        models = (await client.get("/v1/models")).json()
        assert models["object"] == "list"
        assert [model["id"] for model in models["data"]] == [MODEL, "tiny"]
        for model in models["data"]:
            assert model["object"] == "model"
            assert model["max_model_len"] == 256
            assert isinstance(model["created"], int)
        for path in (MODEL, "org%2Ftiny", "tiny"):
            assert (await client.get(f"/v1/models/{path}")).status_code == 200
        answer = await client.post(CHAT, json=chat_body() | {"model": "tiny"})
        assert answer.json()["model"] == MODEL


async def test_the_api_describes_itself() -> None:
    async with running() as (_, client):
        document = (await client.get("/openapi.json")).json()
        operation = document["paths"]["/v1/chat/completions"]["post"]
        fields = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert {"messages", "verifier", "num_draft_tokens", "top_logprobs"} <= set(fields)
        assert set(operation["responses"]) >= {"200", "400", "401", "404", "413", "429", "503"}
        assert "422" not in operation["responses"]


def lose_the_device(engine: AsyncEngine) -> None:
    def failing(layout: object) -> object:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nand much more")

    engine._runtime.target.forward = failing  # type: ignore[assignment, method-assign]


async def test_a_server_whose_device_is_lost_does_not_look_healthy() -> None:
    async with running() as (app, client):
        assert (await client.get("/health")).status_code == 200
        lose_the_device(app.state.readiness._model.engine)
        error_of(await client.post(CHAT, json=chat_body()), 500)
        health = await client.get("/health")
        assert health.status_code == 503
        assert "stopped" in health.json()["reason"]
        error_of(await client.post(CHAT, json=chat_body()), 503)


def test_a_process_whose_device_is_lost_ends_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = asyncio.run(served())
    monkeypatch.setattr("server.process.assemble", lambda *_: built)
    file = tmp_path / "config.yaml"
    file.write_text("{}")
    settings = load_settings(file, {"models": {"target": {"source": str(tmp_path), "device": "cpu"}}})
    process = ServerProcess(settings, Folders(tmp_path, None), began=0.0)
    with socket.create_server(("127.0.0.1", 0)) as port, ThreadPoolExecutor() as threads:
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        running_until = threads.submit(process.run, port)
        with httpx.Client(timeout=30) as client:
            while client.get(f"{url}/health").status_code != 200:
                time.sleep(0.05)
            lose_the_device(built.engine)
            assert client.post(url + CHAT, json={**chat_body(), "model": settings.model_name}).status_code == 500
        assert running_until.result(timeout=30) == (
            "the engine gave up: CUDA error: an illegal memory access was encountered"
        )
