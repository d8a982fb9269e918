"""What reaches the engine of `draft_length`, `drafter` and their defaults, whatever dialect says it."""

from typing import Any

import pytest

from core.sequence import GenerationRequest
from scheduler.engine import AsyncEngine
from tests.server.serving import chat_body, completion_body, ok, running, serve_config

PATHS = {
    "/v1/chat/completions": lambda more: chat_body(max_tokens=3, **more),
    "/v1/completions": lambda more: completion_body(max_tokens=3, **more),
    "/v1/responses": lambda more: {"model": serve_config().model, "input": "hi", "max_output_tokens": 3, **more},
    "/generate": lambda more: {"inputs": "hi", "parameters": {"max_new_tokens": 3, **more}},
}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    requests: list[GenerationRequest] = []
    submit = AsyncEngine.submit

    def noting(self: AsyncEngine, request: GenerationRequest, *rest: Any, **more: Any) -> Any:
        if request.request_id != "warm-up":
            requests.append(request)
        return submit(self, request, *rest, **more)

    monkeypatch.setattr(AsyncEngine, "submit", noting)
    return requests


@pytest.mark.parametrize("path", list(PATHS))
async def test_every_dialect_takes_it(path: str, submitted: list[GenerationRequest]) -> None:
    async with running() as (_, client):
        for more in ({}, {"draft_length": "adaptive"}, {"draft_length": "fixed"}, {"verifier": "off"}):
            ok(await client.post(path, json=PATHS[path](more)))
    assert [request.adaptive for request in submitted] == [True, True, False, False]


async def test_only_a_free_choice_lets_lookup_stand_in(submitted: list[GenerationRequest]) -> None:
    async with running() as (_, client):
        for more in (
            {},
            {"verifier": "fly"},
            {"verifier": "csd"},
            {"verifier": "hybrid"},
            {"drafter": "multilevel"},
            {"draft_length": "fixed"},
            {"verifier": "off"},
        ):
            ok(await client.post("/v1/chat/completions", json=chat_body(max_tokens=3, **more)))
    stand_ins = [request.other_drafters for request in submitted]
    assert stand_ins == [("prompt_lookup",)] * 4 + [()] * 3
    assert {request.drafter for request in submitted[:6]} == {"multilevel"}


async def test_the_configuration_decides_for_who_does_not_say(submitted: list[GenerationRequest]) -> None:
    config = serve_config(default_draft_length="fixed", allowed_drafters=("multilevel",))
    async with running(config) as (_, client):
        for more in ({}, {"draft_length": "adaptive"}):
            ok(await client.post("/v1/chat/completions", json=chat_body(max_tokens=3, **more)))
    assert [(request.adaptive, request.other_drafters) for request in submitted] == [(False, ()), (True, ())]


async def test_off_needs_no_drafter() -> None:
    async with running(serve_config(allowed_drafters=("multilevel",)), draft=False) as (_, client):
        ok(await client.post("/v1/chat/completions", json=chat_body(max_tokens=3, verifier="off")))
        ok(await client.post("/v1/chat/completions", json=chat_body(max_tokens=3, verifier="off", drafter="auto")))
        refused = await client.post("/v1/chat/completions", json=chat_body(max_tokens=3, verifier="strict"))
        assert refused.status_code == 400
        assert "use the verifier 'off'" in refused.json()["error"]["message"]
        named = await client.post("/v1/chat/completions", json=chat_body(verifier="off", drafter="multilevel"))
        assert named.status_code == 400
