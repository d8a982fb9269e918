"""The engine on real tiny models: answers, events, figures, order of service."""

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from core.provenance import FinishReason
from core.runtime import Runtime
from core.sequence import CommittedToken, GenerationRequest
from core.verifiers.params import (
    CsdParams,
    FlyParams,
    HybridParams,
    LossyParams,
    OffParams,
    StrictParams,
    VerifierParams,
)
from scheduler.engine import AsyncEngine
from scheduler.events import FinishedEvent, TokensEvent
from scheduler.stats import EngineStats
from tests.excuses import excused
from tests.scheduler.floor import limits
from tests.scheduler.serving import Recorder, answers, ask, collect, gated, runtime, serving, settled
from tests.tiny import EOS, Driver, make_request, make_runtime, random_model, random_prompt

MIX: list[tuple[VerifierParams, str, int, dict[str, Any]]] = [
    (OffParams(), "none", 0, {}),
    (StrictParams(), "multilevel", 6, {"temperature": 0.8, "top_p": 0.9, "seed": 3}),
    (FlyParams(entropy_threshold=0.05, window=2), "model", 7, {}),
    (CsdParams(), "multilevel", 5, {}),
    (HybridParams(entropy_threshold=0.05, window=2), "multilevel", 9, {}),
    (LossyParams(threshold=0.1), "model", 4, {"temperature": 1.2, "seed": 4}),
    (StrictParams(), "prompt_lookup", 8, {}),
    (FlyParams(entropy_threshold=0.05, window=2), "prompt_lookup", 8, {"seed": 5, "temperature": 1.0}),
]


def mixed_requests(max_tokens: int = 40) -> list[GenerationRequest]:
    return [
        make_request(
            random_prompt(5 + 9 * n, seed=n),
            verifier=verifier,
            drafter=drafter,
            num_draft_tokens=drafts,
            max_tokens=max_tokens,
            request_id=f"r{n}",
            ignore_eos=True,
            **sampling,
        )
        for n, (verifier, drafter, drafts, sampling) in enumerate(MIX)
    ]


def alone(request: GenerationRequest, family: str = "llama") -> list[int]:
    return Driver(runtime(family)).run([request])[0].output


def assert_same(on: Runtime, request: GenerationRequest, expected: list[int], got: list[int]) -> None:
    rows = request.num_draft_tokens + 1
    assert got == expected or excused(on.target, request, expected, got, rows)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
async def test_eight_at_once_are_answered_as_each_alone_with_one_forward_a_round(family: str) -> None:
    on = runtime(family)
    recorder = Recorder()
    requests = mixed_requests()
    async with serving(on, limits(prefill_chunk=128, round_tokens=256), recorder) as engine:
        results = await answers(engine, requests)
        stats = await settled(engine)
    assert on.target.forwards == stats.rounds == len(recorder.rounds)
    assert max(result.decoding for result in recorder.rounds) == 8
    assert stats.finished == {FinishReason.LENGTH: 8}
    for request, (tokens, _) in zip(requests, results, strict=True):
        assert_same(on, request, alone(request, family), tokens)


async def test_the_last_event_carries_the_figures_of_the_request() -> None:
    on = runtime()
    recorder = Recorder()
    request = make_request(
        random_prompt(50, 1), drafter="model", num_draft_tokens=4, max_tokens=30, ignore_eos=True, request_id="a"
    )
    async with serving(on, observer=recorder) as engine:
        began = time.time()
        stream = engine.submit(request)
        events = [event async for event in stream]
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        again = await collect(engine.submit(request))
    *tokens, last = events
    assert all(isinstance(event, TokensEvent) for event in tokens)
    assert recorder.finished["a"] is last
    assert (last.reason, last.message) == (FinishReason.LENGTH, None)
    assert (last.prompt_tokens, last.completion_tokens, last.cached_prompt_tokens) == (50, 30, 0)
    assert again[1].cached_prompt_tokens == again[1].counters.cached_prompt_tokens == 48
    counters = last.counters
    assert counters.rounds == len(tokens) - 1
    assert counters.round_tokens == 29
    assert counters.mean_accepted_length == 29 / counters.rounds
    assert 0 < counters.accepted_tokens <= counters.draft_tokens
    timings = last.timings
    assert timings.time_to_first_token is not None
    assert 0 <= timings.queued_seconds < timings.time_to_first_token < timings.total_seconds
    assert began <= timings.finished_at <= time.time()


async def test_strict_is_never_drafted_beyond_max_tokens_but_loose_is() -> None:
    for verifier, expected in ((StrictParams(), 1), (FlyParams(window=1), 8)):
        recorder = Recorder()
        request = make_request(
            random_prompt(9, 2), verifier=verifier, drafter="model", num_draft_tokens=8, max_tokens=3, ignore_eos=True
        )
        async with serving(make_runtime(random_model(1), random_model(1)), observer=recorder) as engine:
            _, last = await collect(engine.submit(request))
        assert last.completion_tokens == 3
        assert recorder.rounds[1].items[0].drafted == expected


class StopAt:
    """Ends an answer at the first token, from the eighth on, whose id is a multiple of 5."""

    def __init__(self) -> None:
        self.seen = 0

    def push(self, token_id: int) -> bool:
        self.seen += 1
        return self.seen >= 8 and token_id % 5 == 0


EVERYTHING: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "frequency_penalty": 0.3, "logprobs": 2},
    {"min_tokens": 20, "presence_penalty": 0.6, "logit_bias": {EOS: 8.0}, "temperature": 0.9, "seed": 7},
    {"min_tokens": 12, "logprobs": 0},
]


def picky_requests() -> list[GenerationRequest]:
    """Strict ones that ask for penalties, min_tokens, biases and logprobs, with every drafter."""
    return [
        replace(
            make_request(
                random_prompt(15 + 9 * n, seed=n), drafter=drafter, num_draft_tokens=5 + n, max_tokens=36, **options
            ),
            request_id=f"picky {n}",
        )
        for n, (options, drafter) in enumerate(zip(EVERYTHING, ["model", "multilevel", "prompt_lookup"], strict=True))
    ]


def as_off(request: GenerationRequest) -> GenerationRequest:
    return replace(request, verifier=OffParams(), drafter="none", num_draft_tokens=0)


async def committed(
    engine: AsyncEngine, requests: list[GenerationRequest]
) -> list[tuple[list[CommittedToken], FinishedEvent]]:
    """Everything each request was sent; those called picky have a stop condition too."""

    async def one(request: GenerationRequest) -> tuple[list[CommittedToken], FinishedEvent]:
        stop = StopAt() if request.request_id.startswith("picky") else None
        *tokens, last = [event async for event in engine.submit(request, stop)]
        assert isinstance(last, FinishedEvent)
        return [t for event in tokens if isinstance(event, TokensEvent) for t in event.tokens], last

    return await asyncio.gather(*map(one, requests))


@pytest.mark.parametrize("num_blocks", [11, 12])
async def test_a_small_pool_preempts_and_changes_no_answer(num_blocks: int) -> None:
    small, recorder = runtime(num_blocks=num_blocks, block_size=8), Recorder()
    mixed = [r for r in mixed_requests(36) if len(r.prompt) + r.num_draft_tokens < 80]
    requests = [*mixed[:2], *picky_requests(), *mixed[2:]]
    bounds = limits(max_context=88, prefill_chunk=24)
    async with serving(small, bounds, recorder) as engine:
        results = await committed(engine, requests)
        stats = await settled(engine)
    async with serving(runtime(block_size=8), bounds) as engine:
        expected = await committed(engine, requests)
        off = await committed(engine, [as_off(r) if r.verifier.type == "strict" else r for r in requests])
        assert engine.stats().preemptions == 0
    assert stats.preemptions == len(recorder.preempted) > 0
    assert set(recorder.preempted) & {r.request_id for r in picky_requests()}
    assert stats.blocks_used == 0
    for request, (tokens, last), (wanted, roomy), (plain, _) in zip(requests, results, expected, off, strict=True):
        assert_same(small, request, ids(wanted), ids(tokens))
        assert_same(small, request, ids(plain), ids(tokens))
        assert last.reason is roomy.reason
        assert last.counters.preemptions == recorder.preempted.count(request.request_id)
        assert_same_logprobs(tokens, plain)
    assert {last.reason for _, last in results} == {FinishReason.STOP, FinishReason.LENGTH}


def ids(tokens: list[CommittedToken]) -> list[int]:
    return [token.token_id for token in tokens]


def assert_same_logprobs(got: list[CommittedToken], wanted: list[CommittedToken]) -> None:
    """Up to the first token that differs; rounding apart."""
    for one, other in zip(got, wanted, strict=False):
        if one.token_id != other.token_id:
            return
        assert (one.logprobs is None) == (other.logprobs is None)
        if one.logprobs is not None and other.logprobs is not None:
            assert one.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=1e-3)
            assert [p for _, p in one.logprobs.top] == pytest.approx([p for _, p in other.logprobs.top], abs=1e-3)


async def test_an_answer_ends_where_the_context_does() -> None:
    request = make_request(random_prompt(20, 1), max_tokens=500, ignore_eos=True)
    async with serving(runtime(), limits(max_context=30)) as engine:
        tokens, last = await collect(engine.submit(request))
    assert len(tokens) == 10
    assert last.reason is FinishReason.LENGTH
    async with serving(runtime(num_blocks=3, block_size=8)) as engine:
        assert engine.max_context == 24
        tokens, last = await collect(engine.submit(request))
    assert len(tokens) == 4


async def test_urgent_requests_are_served_first() -> None:
    recorder = Recorder()
    async with serving(runtime(), limits(max_running=1), recorder) as engine:
        requests = [
            replace(make_request(random_prompt(6, n), max_tokens=3), request_id=name, priority=priority)
            for n, (name, priority) in enumerate([("c", 5), ("a", -1), ("b", 0), ("d", 5)])
        ]
        await answers(engine, requests)
    assert recorder.first_tokens == ["a", "b", "c", "d"]


class StopAfter:
    def __init__(self, count: int) -> None:
        self.left = count

    def push(self, token_id: int) -> bool:
        self.left -= 1
        return self.left == 0


async def test_a_stop_condition_ends_the_answer_at_its_token() -> None:
    request = make_request(random_prompt(9, 2), drafter="model", num_draft_tokens=8, ignore_eos=True)
    async with serving(runtime()) as engine:
        tokens, last = await collect(engine.submit(request, StopAfter(7)))
    assert len(tokens) == last.completion_tokens == 7
    assert last.reason is FinishReason.STOP


async def test_idle_engine_sleeps() -> None:
    async with serving(runtime()) as engine:
        await collect(engine.submit(make_request(random_prompt(5, 1), max_tokens=3)))
        await asyncio.sleep(0.05)
        rounds, began = engine.stats().rounds, time.process_time()
        await asyncio.sleep(0.4)
        assert time.process_time() - began < 0.1
        assert engine.stats().rounds == rounds
        await collect(engine.submit(make_request(random_prompt(5, 1), max_tokens=3)))


async def test_the_event_loop_is_free_during_a_round() -> None:
    on = runtime()
    with gated(on) as gate:
        async with serving(on) as engine:
            first = engine.submit(make_request(random_prompt(5, 1), max_tokens=4, request_id="a"))
            await gate.reached()  # from here the forward hangs in the worker
            second = engine.submit(make_request(random_prompt(5, 2), max_tokens=4, request_id="b"))
            await asyncio.sleep(0.05)
            stats = engine.stats()
            assert (stats.running, stats.waiting, stats.rounds) == (1, 1, 0)
            gate.open()
            await asyncio.gather(collect(first), collect(second))


async def test_stats_read_by_another_thread_are_of_one_moment() -> None:
    seen: list[EngineStats] = []
    done = threading.Event()

    def read(engine: AsyncEngine) -> None:
        while not done.is_set():
            seen.append(engine.stats())
            time.sleep(0.0005)

    async with serving(runtime(), limits(max_running=3)) as engine:
        reader = asyncio.create_task(asyncio.to_thread(read, engine))
        await answers(engine, [ask(f"r{number}", number, max_tokens=20) for number in range(12)])
        done.set()
        await reader
        last = await settled(engine)
    assert len(seen) > 3
    for stats in [*seen, last]:
        assert stats.blocks_used + stats.blocks_free == stats.blocks_total
        assert 0 <= stats.blocks_evictable <= stats.blocks_free
        assert stats.running + stats.waiting + sum(stats.finished.values()) <= 12
        assert (stats.blocks_used > 0) or not stats.rounds or not stats.running
    assert last.finished == {FinishReason.LENGTH: 12}
