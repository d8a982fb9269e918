"""Nothing that takes long for a legal request is done on the event loop."""

import asyncio
import json
import threading
import time
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

import server.openai_api.completions
import server.openai_api.parameters
from server.openai_api.legacy_logprobs import LegacyLogprobs
from server.streaming import WholeAnswer
from server.text.stop_strings import StopAutomaton
from tests.server.serving import chat, complete


async def test_the_largest_stop_automaton_is_built_off_the_event_loop(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []

    class Watched(StopAutomaton):
        def __init__(self, stops: Iterable[bytes]) -> None:
            built.append(threading.get_ident())
            super().__init__(stops)

    monkeypatch.setattr(server.openai_api.parameters, "StopAutomaton", Watched)
    stops = [chr(0x1F600 + i) * 1024 for i in range(16)]
    await chat(client, stop=stops)
    await complete(client, stop=stops)
    assert len(built) == 2
    assert threading.get_ident() not in built


async def test_arrays_of_log_probabilities_are_built_off_the_event_loop(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []

    class Watched(LegacyLogprobs):
        def add_prompt(self, *arguments: Any) -> None:
            built.append(threading.get_ident())
            super().add_prompt(*arguments)

        def add_answer(self, *arguments: Any) -> None:
            built.append(threading.get_ident())
            super().add_answer(*arguments)

    monkeypatch.setattr(server.openai_api.completions, "LegacyLogprobs", Watched)
    await complete(client, logprobs=5, echo=True)
    assert len(built) == 2
    assert threading.get_ident() not in built


async def test_encoding_a_big_answer_does_not_hold_up_the_event_loop() -> None:
    entry = {"token": "é", "logprob": -0.5, "top_logprobs": [{"token": "x", "logprob": -1.0, "bytes": [120]}] * 20}
    lists = [{"content": [entry] * 5000, "refusal": None}, {"tokens": [], "top_logprobs": [{"a": -1.5}] * 20}]
    answer = {"id": "1", "choices": [{"index": 0, "logprobs": one} for one in lists], "usage": {}, "empty": []}
    assert json.loads(WholeAnswer(answer).body) == answer
    # Encoded in one call, the loop's longest pause is nearly all of the time; other load can only make it longer.
    assert min([await longest_pause(answer) for _ in range(4)]) < 0.5


async def longest_pause(answer: Any) -> float:
    """Of the event loop while an answer is encoded in a thread, as a share of the time that takes."""
    began = last = time.perf_counter()
    encoding = asyncio.create_task(asyncio.to_thread(WholeAnswer, answer))
    pauses: list[float] = []
    while not encoding.done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        pauses.append(now - last)
        last = now
    return max(pauses) / (last - began)
