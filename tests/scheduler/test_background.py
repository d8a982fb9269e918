"""Background work: only in an empty engine, gone when anybody comes, and in nobody's figures or cache."""

import asyncio
import copy
from dataclasses import replace

import pytest

from core.provenance import FinishReason
from core.sequence import GenerationRequest
from scheduler.admission import EngineBusy
from scheduler.events import FinishedEvent, PromptEvent, TokensEvent
from scheduler.stats import EngineStats
from scheduler.stream import RequestStream
from tests.scheduler.floor import limits
from tests.scheduler.serving import Recorder, ask, assert_clean, collect, gated, runtime, serving, settled
from tests.tiny import random_prompt


def own(name: str, **options: object) -> GenerationRequest:
    return replace(ask(name, **options), background=True)  # type: ignore[arg-type]


async def scores(stream: RequestStream) -> list[float]:
    async for event in stream:
        if isinstance(event, PromptEvent):
            return [token.logprob for token in event.logprobs]
    raise AssertionError("the prompt was not told of")


async def test_it_answers_as_any_other_request_does() -> None:
    async with serving(runtime()) as engine:
        plain, _ = await collect(engine.submit(ask("plain")))
        tokens, end = await collect(engine.submit(own("own")))
        assert tokens == plain
        assert end.reason is FinishReason.LENGTH


async def test_it_shows_in_no_total_and_no_observer_hears_of_it() -> None:
    recorder, on = Recorder(), runtime()
    async with serving(on, observer=recorder) as engine:
        await collect(engine.submit(ask("user")))
        before, heard = await settled(engine), len(recorder.rounds)
        stream = engine.submit(own("own", seed=2))
        assert (engine.stats().running, engine.stats().waiting) == (0, 0)
        async for event in stream:
            assert engine.stats().running == 0
            assert isinstance(event, TokensEvent | FinishedEvent)
        after = await settled(engine)
        assert after == replace(before, blocks_cached=after.blocks_cached)
        assert (list(recorder.finished), len(recorder.rounds)) == (["user"], heard)
        assert recorder.first_tokens == ["user"]
        assert_clean(on, after)


async def test_what_steps_cost_is_not_learnt_from_it() -> None:
    """Costs lead users' draft lengths and their estimated speedup."""
    on = runtime()
    async with serving(on) as engine:
        await collect(engine.submit(ask("user", max_tokens=30)))
        await settled(engine)
        before = [copy.deepcopy(vars(costs)) for costs in (on.cost, on.forward_costs)]
        await collect(engine.submit(own("own", seed=2, max_tokens=60)))
        await settled(engine)
        assert [vars(costs) for costs in (on.cost, on.forward_costs)] == before
        await collect(engine.submit(ask("another", seed=3, max_tokens=30)))
        assert [vars(costs) for costs in (on.cost, on.forward_costs)] != before


async def test_it_is_refused_while_anybody_is_there() -> None:
    async with serving(runtime()) as engine:
        stream = engine.submit(ask("user", max_tokens=30))
        with pytest.raises(EngineBusy):
            engine.submit(own("own"))
        await collect(stream)
        first = engine.submit(own("own"))
        with pytest.raises(EngineBusy):
            engine.submit(own("second"))
        await collect(first)


async def test_whoever_comes_waits_for_one_round_of_it_at_most() -> None:
    on = runtime()
    recorder = Recorder()
    with gated(on) as gate:
        async with serving(on, observer=recorder) as engine:
            stream = engine.submit(own("own", max_tokens=200))
            await gate.reached()
            user = engine.submit(ask("user"))
            gate.open()
            tokens, end = await collect(user)
            assert end.reason is FinishReason.LENGTH
            assert len(tokens) == 12
            told, cut = await collect(stream)
            assert cut.reason is FinishReason.ABORT
            assert len(told) <= 1
            assert recorder.rounds[0].items[0].sequence.request.request_id == "user"
            assert_clean(on, await settled(engine))


async def test_it_takes_no_place_from_a_full_house() -> None:
    on = runtime()
    with gated(on) as gate:
        async with serving(on, limits(max_running=1, max_waiting=1)) as engine:
            stream = engine.submit(own("own", max_tokens=100))
            await gate.reached()
            users = [engine.submit(ask(name)) for name in ("first", "second")]
            gate.open()
            for user in users:
                assert (await collect(user))[1].reason is FinishReason.LENGTH
            assert (await collect(stream))[1].reason is FinishReason.ABORT


async def test_one_that_waits_is_gone_before_its_first_round() -> None:
    on = runtime()
    async with serving(on) as engine:
        stream = engine.submit(own("own"))
        user = engine.submit(ask("user"))
        assert engine.stats().waiting == 1
        told, end = await collect(stream)
        assert (told, end.reason) == ([], FinishReason.ABORT)
        assert (await collect(user))[1].reason is FinishReason.LENGTH


async def test_a_stop_does_not_wait_for_it() -> None:
    on = runtime()
    async with serving(on) as engine:
        stream = engine.submit(own("own", max_tokens=400))
        await anext(stream)
        assert await asyncio.wait_for(engine.stop(drain_seconds=60), 20) == 0
        assert (await collect(stream))[1].reason is FinishReason.ABORT


async def test_it_leaves_no_block_in_the_prefix_cache() -> None:
    on = runtime()
    async with serving(on) as engine:
        await collect(engine.submit(ask("user", prompt=40)))
        cached = (await settled(engine)).blocks_cached
        await collect(engine.submit(own("own", prompt=40, max_tokens=100)))
        await collect(engine.submit(own("other", seed=5, prompt=70)))
        stats: EngineStats = await settled(engine)
        assert stats.blocks_cached == cached
        assert_clean(on, stats)


async def test_it_reads_what_others_left_in_the_cache() -> None:
    async with serving(runtime()) as engine:
        await collect(engine.submit(ask("user", prompt=40)))
        _, end = await collect(engine.submit(own("own", prompt=40)))
        assert end.cached_prompt_tokens == 32


async def test_prompts_are_scored_from_where_it_is_asked() -> None:
    prompt = tuple(random_prompt(60, 3))
    async with serving(runtime()) as engine:
        whole = replace(ask("whole", max_tokens=0), prompt=prompt, prompt_logprobs=0)
        part = replace(whole, request_id="part", scored_from=40, background=True)
        everything = await scores(engine.submit(whole))
        await settled(engine)
        rest = await scores(engine.submit(part))
        assert len(everything) == 59
        assert rest == pytest.approx(everything[40:], abs=1e-4)


async def test_nobody_has_been_there_since_the_last_one_left() -> None:
    async with serving(runtime()) as engine:
        stream = engine.submit(ask("user"))
        assert engine.idle_seconds == 0
        await collect(stream)
        await settled(engine)
        await asyncio.sleep(0.02)
        before = engine.idle_seconds
        assert before >= 0.02
        await collect(engine.submit(own("own")))
        assert engine.idle_seconds > before


async def test_scores_known_when_somebody_comes_are_told_so_that_the_rest_can_be_asked_for() -> None:
    prompt = tuple(random_prompt(200, 3))
    scoring = replace(ask("whole", max_tokens=0), prompt=prompt, prompt_logprobs=0, background=True)
    on = runtime()
    async with serving(on) as engine:
        everything = await scores(engine.submit(scoring))
        await settled(engine)
        rounds = 0
        forward = on.target.forward

        def count(layout: object) -> object:
            nonlocal rounds
            rounds += 1
            return forward(layout)  # type: ignore[arg-type]

        on.target.forward = count  # type: ignore[method-assign, assignment]
        stream = engine.submit(scoring)
        while rounds < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        user = engine.submit(ask("user"))
        first = await scores(stream)
        await collect(user)
        assert 0 < len(first) < len(everything)
        rest = await scores(engine.submit(replace(scoring, request_id="rest", scored_from=len(first))))
        assert [*first, *rest] == pytest.approx(everything, abs=1e-4)
