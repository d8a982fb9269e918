"""What the engine does not take, and what it says then."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from core.verifiers.params import FlyParams
from scheduler.admission import ContextTooLong, QueueFull
from tests.scheduler.floor import limits
from tests.scheduler.serving import answers, ask, collect, runtime, serving
from tests.tiny import make_runtime, random_model


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
        loose: dict[str, Any] = {"verifier": FlyParams(window=2), "drafter": "model", "num_draft_tokens": 10}
        with pytest.raises(ContextTooLong, match="longest that can be answered here has 53"):
            engine.submit(ask("a", prompt=54, **loose))
        (long, _), (with_drafts, _) = await answers(engine, [ask("a", prompt=59), ask("b", prompt=53, **loose)])
        assert (len(long), len(with_drafts)) == (1, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": ()}, "at least one token"),
        ({"prompt": (5, 199)}, "within 0 and 198"),
        ({"max_tokens": -1}, "max_tokens must not be negative"),
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
