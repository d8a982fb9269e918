"""Which of an answer's tokens a message of /v1/responses lists: those that spell its words, however they came."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.server.openai_api.responses import events_of, respond, saying
from tests.server.serving import running, serve_config

CALL = '<tool_call> "{\\"name\\": \\"f\\", \\"arguments\\": {\\"a\\": 1}}</tool_call>"'
TOOLS = [{"type": "function", "name": "f", "parameters": None, "strict": False}]
MORE = {"tools": TOOLS, "max_output_tokens": 200, "include": ["message.output_text.logprobs"]}


@pytest_asyncio.fixture
async def thinker() -> AsyncIterator[httpx.AsyncClient]:
    """A server whose model thinks aloud."""
    async with running(serve_config(reasoning_parser="think"), max_context=1024) as (_, client):
        yield client


def messages_of(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """Each message's text, and what its listed tokens spell."""
    parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    return [(part["text"], "".join(entry["token"] for entry in part["logprobs"])) for part in parts]


@pytest.mark.parametrize(
    ("grammar", "messages"),
    [
        (f'"I look.\\n" {CALL}', ["I look."]),
        (f'"I look." {CALL} "\\nthe king" {CALL}', ["I look.", "\nthe king"]),
        (f'"<think>so <b" "</think>the king <too" " is blue" {CALL}', ["the king <too is blue"]),
        (CALL, []),
    ],
)
async def test_the_tokens_of_a_message_do_not_depend_on_the_rounds(
    thinker: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, grammar: str, messages: list[str]
) -> None:
    saying(monkeypatch, grammar)
    seen = []
    for more in ({"verifier": "off"}, {"num_draft_tokens": 1}, {"num_draft_tokens": 16, "drafter": "prompt_lookup"}):
        answer = await respond(thinker, grammar, **MORE, **more)
        assert [text for text, _ in messages_of(answer)] == messages
        for text, spelled in messages_of(answer):
            assert text in spelled
            assert "tool_call" not in spelled
            assert "think" not in spelled
        events = await events_of(thinker, grammar, **MORE, **more)
        assert messages_of(events[-1]["response"]) == messages_of(answer)
        seen.append(messages_of(answer))
    assert seen[0] == seen[1] == seen[2]
