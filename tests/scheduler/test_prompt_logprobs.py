"""The prompt's log-probabilities through the engine: delivered first, whole, whatever happens around them."""

import asyncio
from dataclasses import replace

import pytest
import torch

from core.provenance import FinishReason
from core.sequence import GenerationRequest
from scheduler.engine import AsyncEngine
from scheduler.events import FinishedEvent, PromptEvent, TokensEvent
from scheduler.limits import SCORED_ROWS
from tests.naive import plain_logits
from tests.scheduler.floor import limits
from tests.scheduler.serving import Recorder, answers, ask, assert_clean, models, runtime, serving, settled


def scored(name: str, num_top: int = 1, **options: object) -> GenerationRequest:
    return replace(ask(name, **options), prompt_logprobs=num_top)  # type: ignore[arg-type]


async def told(engine: AsyncEngine, request: GenerationRequest) -> tuple[PromptEvent, list[int], FinishedEvent]:
    first, *tokens, last = [event async for event in engine.submit(request)]
    assert isinstance(first, PromptEvent)
    assert isinstance(last, FinishedEvent)
    return first, [t.token_id for event in tokens if isinstance(event, TokensEvent) for t in event.tokens], last


def check(request: GenerationRequest, event: PromptEvent) -> None:
    rows = torch.log_softmax(plain_logits(models()[0], list(request.prompt)), -1)
    wanted = [float(row[token]) for row, token in zip(rows, request.prompt[1:], strict=False)]
    assert [one.logprob for one in event.logprobs] == pytest.approx(wanted, abs=1e-4)


async def test_they_survive_a_pool_too_small_for_all_and_full_of_known_prefixes() -> None:
    on, recorder = runtime(num_blocks=14), Recorder()
    requests = [scored(f"r{n}", seed=n % 3, prompt=50 + n, max_tokens=40) for n in range(6)]
    async with serving(on, limits(prefill_chunk=20, round_tokens=40, max_context=200), recorder) as engine:
        for _ in range(2):  # the second time with the first one's blocks in the cache
            results = await asyncio.gather(*(told(engine, request) for request in requests))
            for request, (event, tokens, last) in zip(requests, results, strict=True):
                check(request, event)
                assert len(tokens) == 40
                assert last.cached_prompt_tokens == 0
        assert recorder.preempted
        assert_clean(on, await settled(engine))


async def test_answers_of_no_tokens_come_with_the_prompt_alone() -> None:
    on = runtime()
    async with serving(on) as engine:
        request = scored("r", prompt=100, max_tokens=0, verifier=None)
        event, tokens, last = await told(engine, request)
        check(request, event)
        assert (tokens, last.reason, last.completion_tokens) == ([], FinishReason.LENGTH, 0)
        assert last.timings.time_to_first_token is None
        [(tokens, last)] = await answers(engine, [ask("plain", prompt=100, max_tokens=0)])
        assert (tokens, last.reason) == ([], FinishReason.LENGTH)
        assert last.cached_prompt_tokens == 96
        assert_clean(on, await settled(engine))


@pytest.mark.parametrize("chunk", [1, 2, 3, 32, 600])
async def test_a_round_computes_a_bounded_number_of_rows(chunk: int) -> None:
    on = runtime()
    widths, forward = [], on.target.forward

    def watch(layout):  # type: ignore[no-untyped-def]
        widths.append(layout.num_logits)
        return forward(layout)

    on.target.forward = watch  # type: ignore[method-assign]
    bounds = limits(prefill_chunk=chunk, round_tokens=max(chunk, 16), max_context=512)
    assert bounds.scored_cost >= 2
    async with serving(on, bounds) as engine:
        length = 7 if chunk < 32 else 300
        requests = [scored(f"r{n}", seed=n, prompt=length, max_tokens=0) for n in range(4)]
        for request, (event, _, _) in zip(
            requests, await asyncio.gather(*(told(engine, request) for request in requests)), strict=True
        ):
            check(request, event)
    assert max(widths) <= min(-(-chunk // 2), SCORED_ROWS)
    assert 4 * (length - 1) <= sum(widths) <= 4 * length


async def test_whoever_does_not_ask_gets_no_such_event() -> None:
    async with serving(runtime()) as engine:
        events = [event async for event in engine.submit(ask("r"))]
        assert not any(isinstance(event, PromptEvent) for event in events)
