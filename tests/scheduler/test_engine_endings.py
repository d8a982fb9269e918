"""How requests end early and how the engine stops, and that nothing of them stays behind."""

import asyncio
import gc
import random

import pytest

from core.provenance import FinishReason
from core.sequence import GenerationRequest
from core.verifiers.params import CsdParams, FlyParams, OffParams, StrictParams
from scheduler.admission import EngineStopped
from scheduler.engine import AsyncEngine
from scheduler.events import FinishedEvent, TokensEvent
from tests.scheduler.floor import limits
from tests.scheduler.serving import Recorder, ask, assert_clean, collect, gated, runtime, serving, settled

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
        assert len(recorder.finished) == sum(stats.finished.values()) == 200
        assert stats.finished[FinishReason.LENGTH] >= 50
        assert stats.finished[FinishReason.ABORT] > 25
        assert FinishReason.ERROR not in stats.finished
        assert len(engine._jobs) == 0
        assert engine._jobs.ending == []
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
    assert await stopping == 0
    await engine.stop()
    assert_clean(on, engine.stats())


async def test_the_drain_deadline_aborts_running_and_waiting() -> None:
    on = runtime()
    engine = AsyncEngine(on, limits(max_running=1))
    await engine.start()
    streams = [engine.submit(ask(str(n), max_tokens=400)) for n in range(3)]
    assert isinstance(await anext(streams[0]), TokensEvent)
    assert await engine.stop(drain_seconds=0.02) == 3
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
