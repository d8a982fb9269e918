"""How requests end early, are refused or fail, and that nothing of them stays behind."""

import asyncio
import gc
import logging
import random
from dataclasses import replace

import pytest

from core.provenance import FinishReason
from core.runtime import Runtime
from core.sequence import GenerationRequest
from core.verifiers.params import CsdParams, FlyParams, OffParams, StrictParams
from scheduler.admission import ContextTooLong, EngineStopped, QueueFull
from scheduler.engine import ERROR_MESSAGE, AsyncEngine
from scheduler.events import FinishedEvent, TokensEvent
from scheduler.stats import EngineStats
from tests.scheduler.floor import limits
from tests.scheduler.serving import Recorder, answers, collect, gated, runtime, serving, settled
from tests.tiny import make_request, make_runtime, random_model, random_prompt


def ask(name: str, seed: int = 1, prompt: int = 10, max_tokens: int = 12, **options: object) -> GenerationRequest:
    return make_request(
        random_prompt(prompt, seed),
        max_tokens=max_tokens,
        request_id=name,
        ignore_eos=True,
        **options,  # type: ignore[arg-type]
    )


def assert_clean(on: Runtime, stats: EngineStats) -> None:
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert stats.blocks_free == stats.blocks_total == on.pool.num_blocks
    on.pool.check_integrity(())


FATES = ["finish", "before", "close", "cancel", "abort", "drop", "late", "leave"]


async def suffer(engine: AsyncEngine, request: GenerationRequest, fate: str, chance: random.Random) -> None:
    await asyncio.sleep(chance.random() * 0.5)
    stream = engine.submit(request)
    if fate == "before":
        engine.abort(request.request_id)
        tokens, last = await collect(stream)
        assert (tokens, last.reason) == ([], FinishReason.ABORT)
    elif fate == "cancel":
        consumer = asyncio.create_task(collect(stream))
        await asyncio.sleep(chance.random() * 0.2)
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)
    elif fate == "abort":
        consumer = asyncio.create_task(collect(stream))
        await asyncio.sleep(chance.random() * 0.2)
        engine.abort(request.request_id)
        await consumer
    elif fate in ("close", "leave"):
        async with stream:
            for _ in range(chance.randrange(4)):
                await anext(stream, None)
            if fate == "close":
                await stream.aclose()
                assert await anext(stream, None) is None
    elif fate == "drop":
        await anext(stream)
        del stream
    else:
        tokens, last = await collect(stream)
        assert len(tokens) == last.completion_tokens == request.max_tokens
        if fate == "late":
            engine.abort(request.request_id)
            await stream.aclose()


async def test_two_hundred_requests_ended_at_random_leave_nothing_behind() -> None:
    chance = random.Random(7)
    on, recorder = runtime(num_blocks=60, block_size=8), Recorder()
    kinds = [
        (OffParams(), "none", 0),
        (StrictParams(), "multilevel", 5),
        (FlyParams(window=2), "model", 6),
        (CsdParams(), "prompt_lookup", 4),
    ]
    async with serving(on, limits(max_waiting=300, prefill_chunk=48), recorder) as engine:
        lives = []
        for n in range(200):
            verifier, drafter, drafts = kinds[n % len(kinds)]
            request = ask(
                str(n),
                seed=n % 20,
                prompt=chance.randint(1, 60),
                max_tokens=chance.randint(1, 14),
                verifier=verifier,
                drafter=drafter,
                num_draft_tokens=drafts,
            )
            lives.append(suffer(engine, request, FATES[n % 8], chance))
        await asyncio.gather(*lives)
        gc.collect()
        stats = await settled(engine)
        assert_clean(on, stats)
        assert len(recorder.submitted) == len(recorder.finished) == sum(stats.finished.values()) == 200
        assert stats.finished[FinishReason.LENGTH] >= 50
        assert stats.finished[FinishReason.ABORT] > 25
        assert FinishReason.ERROR not in stats.finished
        assert engine._jobs == {}
        assert engine._aborted == set()
        assert on.target.forwards == stats.rounds


async def test_abort_while_its_round_is_in_flight_ends_after_it() -> None:
    on = runtime()
    with gated(on) as gate:
        async with serving(on) as engine:
            stream = engine.submit(ask("a"))
            await gate.reached()
            engine.abort("a")
            engine.abort("a")
            assert engine.stats().running == 1
            gate.open()
            tokens, last = await collect(stream)
            assert last.reason is FinishReason.ABORT
            assert last.completion_tokens == len(tokens) == 1
            assert_clean(on, await settled(engine))


async def test_abort_of_a_waiting_request_does_not_wait_for_the_round() -> None:
    on = runtime()
    with gated(on) as gate:
        async with serving(on, limits(max_running=1)) as engine:
            first, second = engine.submit(ask("a", max_tokens=2)), engine.submit(ask("b"))
            await gate.reached()
            engine.abort("b")
            tokens, last = await collect(second)
            assert (tokens, last.reason) == ([], FinishReason.ABORT)
            assert last.timings.time_to_first_token is None
            gate.open()
            assert (await collect(first))[1].reason is FinishReason.LENGTH


async def test_a_consumer_cancelled_while_it_waits_aborts_its_request() -> None:
    async with serving(runtime()) as engine:
        stream = engine.submit(ask("a", max_tokens=400))
        await anext(stream)
        consumer = asyncio.create_task(collect(stream))
        await asyncio.sleep(0)
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        stats = await settled(engine)
        assert stats.finished == {FinishReason.ABORT: 1}
        assert await anext(stream, None) is None


async def test_a_forgotten_stream_aborts_its_request() -> None:
    async with serving(runtime()) as engine:
        stream = engine.submit(ask("a", max_tokens=400))
        await anext(stream)
        del stream
        gc.collect()
        assert (await settled(engine)).finished == {FinishReason.ABORT: 1}


async def test_closing_an_ended_stream_spares_the_next_request_of_that_name() -> None:
    async with serving(runtime()) as engine:
        old = engine.submit(ask("a", max_tokens=2))
        await settled(engine)
        new = engine.submit(ask("a", max_tokens=5))
        await old.aclose()
        assert (await collect(new))[1].reason is FinishReason.LENGTH


async def test_a_slow_consumer_delays_nobody_and_misses_nothing() -> None:
    async with serving(runtime()) as engine:
        slow = engine.submit(ask("slow", max_tokens=20))
        await collect(engine.submit(ask("quick", max_tokens=25)))
        await settled(engine)
        assert len(slow._channel.events) == 21
        tokens, last = await collect(slow)
        assert len(tokens) == last.completion_tokens == 20


async def test_full_queue_refuses_with_a_time_to_retry() -> None:
    async with serving(runtime(), limits(max_running=2, max_waiting=1)) as engine:
        streams = [engine.submit(ask(str(n))) for n in range(3)]
        with pytest.raises(QueueFull) as refused:
            engine.submit(ask("3"))
        assert 1 <= refused.value.retry_after <= 60
        await asyncio.gather(*map(collect, streams))
        assert engine.stats().refused == 1
        await collect(engine.submit(ask("3")))


async def test_places_in_the_queue_do_not_depend_on_who_has_started() -> None:
    async with serving(runtime(), limits(max_running=2, max_waiting=1)) as engine:
        streams = [engine.submit(ask(str(n), max_tokens=100)) for n in range(2)]
        await asyncio.gather(*map(anext, streams))
        assert engine.stats().running == 2
        streams.append(engine.submit(ask("2")))
        with pytest.raises(QueueFull):
            engine.submit(ask("3"))


async def test_what_can_never_fit_is_refused() -> None:
    async with serving(runtime(num_blocks=8, block_size=8), limits(max_context=60)) as engine:
        with pytest.raises(ContextTooLong, match="has 60 tokens; the longest that can be answered here has 59"):
            engine.submit(ask("a", prompt=60))
        loose = {"verifier": FlyParams(window=2), "drafter": "model", "num_draft_tokens": 10}
        with pytest.raises(ContextTooLong, match="longest that can be answered here has 53"):
            engine.submit(ask("a", prompt=54, **loose))
        (long, _), (with_drafts, _) = await answers(engine, [ask("a", prompt=59), ask("b", prompt=53, **loose)])
        assert (len(long), len(with_drafts)) == (1, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": ()}, "at least one token"),
        ({"prompt": (5, 199)}, "within 0 and 198"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"request_id": ""}, "request_id must not be empty"),
        ({"strict_prefix": -1}, "strict_prefix"),
        ({"priority": 10**400}, "priority"),
        ({"drafter": "model", "num_draft_tokens": 3}, "drafter 'model' is not available here"),
        ({"drafter": "psychic", "num_draft_tokens": 3}, "available: none, prompt_lookup"),
        ({"drafter": "prompt_lookup"}, "positive with one, got 0"),
        ({"num_draft_tokens": 2}, "must be 0 without a drafter"),
        ({"drafter": "prompt_lookup", "num_draft_tokens": 2}, "verifier off does not draft"),
        ({"drafter": "prompt_lookup", "num_draft_tokens": 64, "verifier": FlyParams()}, "less than round_tokens"),
    ],
)
async def test_nonsense_is_a_value_error(changes: dict[str, object], message: str) -> None:
    async with serving(make_runtime(random_model(1))) as engine:
        with pytest.raises(ValueError, match=message):
            engine.submit(replace(ask("a"), **changes))  # type: ignore[arg-type]
        assert engine.stats().waiting == 0


async def test_a_live_request_id_cannot_be_used_twice() -> None:
    async with serving(runtime()) as engine:
        stream = engine.submit(ask("a"))
        with pytest.raises(ValueError, match="'a' is in use"):
            engine.submit(ask("a"))
        await collect(stream)
        await collect(engine.submit(ask("a")))


async def test_draining_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    on = runtime()
    engine = AsyncEngine(on, limits(max_running=2))
    with pytest.raises(EngineStopped):
        engine.submit(ask("early"))
    await engine.start()
    with pytest.raises(RuntimeError, match="already started"):
        await engine.start()
    streams = [engine.submit(ask(str(n))) for n in range(4)]
    stopping = asyncio.create_task(engine.stop(drain_seconds=30))
    await asyncio.sleep(0)
    assert not engine.accepting
    with pytest.raises(EngineStopped):
        engine.submit(ask("late"))
    for _, last in await asyncio.gather(*map(collect, streams)):
        assert last.reason is FinishReason.LENGTH
    await stopping
    await engine.stop()
    assert_clean(on, engine.stats())


async def test_the_drain_deadline_aborts_running_and_waiting() -> None:
    on = runtime()
    engine = AsyncEngine(on, limits(max_running=1))
    await engine.start()
    streams = [engine.submit(ask(str(n), max_tokens=400)) for n in range(3)]
    assert isinstance(await anext(streams[0]), TokensEvent)
    await engine.stop(drain_seconds=0.02)
    for stream in streams:
        assert (await collect(stream))[1].reason is FinishReason.ABORT
    assert_clean(on, engine.stats())


async def test_stopping_an_engine_that_never_started_is_fine() -> None:
    await AsyncEngine(runtime(), limits()).stop(1)


async def test_a_cancelled_engine_lets_its_round_end_and_frees_everything() -> None:
    on = runtime()
    engine = AsyncEngine(on, limits())
    await engine.start()
    with gated(on) as gate:
        streams = [engine.submit(ask("a")), engine.submit(ask("b"))]
        await gate.reached()
        assert engine._task is not None
        engine._task.cancel()
        await asyncio.sleep(0.02)
        assert not engine._task.done()
        gate.open()
        for stream in streams:
            assert (await collect(stream))[1].reason is FinishReason.ABORT
    assert not engine.accepting
    await engine.stop()
    assert_clean(on, engine.stats())


def fail_at(on: Runtime, call: int) -> None:
    """Let the target's forward number `call`, counted from here, raise."""
    forward, calls = on.target.forward, 0

    def failing(layout: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise MemoryError("secret internals")
        return forward(layout)  # type: ignore[arg-type]

    on.target.forward = failing  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("call", [1, 3])
async def test_a_failing_round_ends_its_own_sequences_only(call: int, caplog: pytest.LogCaptureFixture) -> None:
    requests = [ask(str(n), seed=n, drafter="model", num_draft_tokens=3) for n in range(5)]
    async with serving(runtime()) as engine:
        expected = await answers(engine, requests)
    on, recorder = runtime(), Recorder()
    fail_at(on, call)
    with caplog.at_level(logging.CRITICAL, logger="scheduler.engine"):
        async with serving(on, limits(max_running=2), recorder) as engine:
            results = await answers(engine, requests)
            stats = await settled(engine)
            assert_clean(on, stats)
            again = await answers(engine, requests)
    failed = [last for _, last in results if last.reason is FinishReason.ERROR]
    assert len(failed) == stats.finished[FinishReason.ERROR] == 2
    assert stats.failed_rounds == 1
    assert {last.message for last in failed} == {ERROR_MESSAGE}
    for (tokens, last), (wanted, _) in zip(results, expected, strict=True):
        assert tokens == (wanted if last.reason is FinishReason.LENGTH else wanted[: len(tokens)])
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in expected]


async def test_a_failing_plan_ends_the_running_ones_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    on = runtime()
    async with serving(on) as engine:
        plan, calls = engine._batcher.plan, 0

        def failing() -> object:
            nonlocal calls
            calls += 1
            if calls in (1, 3):
                raise RuntimeError("a bug")
            return plan()

        monkeypatch.setattr(engine._batcher, "plan", failing)
        results = await answers(engine, [ask(str(n)) for n in range(4)])
        reasons = [last.reason for _, last in results]
        assert reasons == [FinishReason.ERROR] * 4  # the first in line, then the three that ran
        assert (await collect(engine.submit(ask("a"))))[1].reason is FinishReason.LENGTH
        assert_clean(on, await settled(engine))


class Grumbler(Recorder):
    def __getattribute__(self, name: str) -> object:
        if name.startswith("on_"):
            raise OSError("no telemetry today")
        return super().__getattribute__(name)


async def test_a_broken_observer_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(runtime(), observer=Grumbler()) as engine:
        _, last = await collect(engine.submit(ask("a")))
    assert last.reason is FinishReason.LENGTH
    assert {"on_submit", "on_round", "on_first_token", "on_finish"} <= {
        record.getMessage().split()[-1] for record in caplog.records
    }


async def test_an_inconsistent_pool_is_reported_when_idle(caplog: pytest.LogCaptureFixture) -> None:
    on = runtime()

    def inconsistent(sequences: object) -> None:
        raise RuntimeError("block 7 is lost")

    on.pool.check_integrity = inconsistent  # type: ignore[method-assign, assignment]
    async with serving(on) as engine:
        await collect(engine.submit(ask("a")))
        await asyncio.sleep(0.05)
        assert any("inconsistent" in record.getMessage() for record in caplog.records)
        assert (await collect(engine.submit(ask("b"))))[1].reason is FinishReason.LENGTH


async def test_every_submitted_request_is_finished_once_for_the_observer() -> None:
    recorder = Recorder()
    async with serving(runtime(), observer=recorder) as engine:
        stream = engine.submit(ask("a"))
        await stream.aclose()
        await stream.aclose()
        await collect(engine.submit(ask("b")))
    assert {name: event.reason for name, event in recorder.finished.items()} == {
        "a": FinishReason.ABORT,
        "b": FinishReason.LENGTH,
    }
    assert all(isinstance(event, FinishedEvent) for event in recorder.finished.values())
