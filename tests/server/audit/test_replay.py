"""Replays through the real engine on tiny random models, against the slow obvious way to find the same."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.provenance import FinishReason, Provenance
from core.runtime import Runtime
from core.sequence import CommittedToken, GenerationRequest, StopCondition
from core.verifiers.params import FlyParams
from scheduler.engine import AsyncEngine
from scheduler.events import TokensEvent
from server.audit.reconverge import RUN
from server.audit.record import AnswerRecord, obstacle
from server.audit.replay import Findings, replay
from server.audit.spare_time import MOST_INTERRUPTIONS, ReplayFailedError, ReplayInterruptedError, SpareTime
from tests.naive import plain_logits
from tests.scheduler.serving import ask, assert_clean, collect, models, runtime, serving, settled
from tests.server.audit.test_reconverge import obvious
from tests.tiny import EOS, make_request, random_prompt

WITHIN, SPAN, CONTEXT = 32, 32 + RUN, 512
WILD = FlyParams(entropy_threshold=0.0, window=0)


def greedy(known: list[int], most: int, ends: frozenset[int] = frozenset()) -> list[int]:
    """The target's own words behind `known`, a whole forward each."""
    words: list[int] = []
    while len(words) < most and not (words and words[-1] in ends):
        words.append(int(plain_logits(models()[0], known + words)[-1].argmax()))
    return words


def mean_logprob(prompt: list[int], answer: list[int]) -> float:
    rows = plain_logits(models()[0], prompt + answer)[len(prompt) - 1 : -1].log_softmax(-1)
    return float(rows[torch.arange(len(answer)), torch.tensor(answer)].mean())


def obvious_findings(record: AnswerRecord, positions: list[int]) -> Findings:
    prompt, answer, request = list(record.prompt), list(record.tokens), record.request
    own = greedy(
        prompt, min(request.max_tokens, max(2 * len(answer), record.loosened[0] + SPAN)), request.end_token_ids
    )
    back = []
    for position in positions:
        words = greedy(prompt + answer[:position], SPAN, request.end_token_ids)
        rest, ended = answer[position:], record.stopped and words[-1] == EOS
        if record.stopped:
            rest = rest[:-1]
        back.append(obvious(rest, words[:-1] if words[-1] == EOS else words, WITHIN, ended))
    return Findings(len(record.loosened), tuple(back), mean_logprob(prompt, answer), mean_logprob(prompt, own))


def loose(name: str, seed: int, **options: object) -> GenerationRequest:
    return make_request(
        random_prompt(12, seed),
        request_id=name,
        verifier=WILD,
        drafter="model",
        num_draft_tokens=6,
        **options,  # type: ignore[arg-type]
    )


async def recorded(engine: AsyncEngine, request: GenerationRequest) -> AnswerRecord:
    """The engine's answer, as the server keeps it."""
    record = AnswerRecord(request, lambda: None)
    async for event in engine.submit(request):
        if isinstance(event, TokensEvent):
            record.push(event.tokens)
    record.finish(FinishReason.STOP if record.tokens[-1] == EOS else FinishReason.LENGTH)
    return record


def record_of(request: GenerationRequest, tokens: list[int], loosened: list[int]) -> AnswerRecord:
    """An answer that never was: these tokens, of which those at `loosened` are said to be loosened."""
    record = AnswerRecord(request, lambda: None)
    origins = [Provenance.DEFERRED if i in loosened else Provenance.NATIVE for i in range(len(tokens))]
    record.push(CommittedToken(token, origin) for token, origin in zip(tokens, origins, strict=True))
    return record


def close_to(findings: Findings) -> Any:
    return replace(
        findings,
        delivered_logprob=pytest.approx(findings.delivered_logprob, abs=1e-3),
        own_logprob=pytest.approx(findings.own_logprob, abs=1e-3),
    )


async def run(engine: AsyncEngine, record: AnswerRecord) -> Findings:
    positions = record.judgeable(WITHIN, CONTEXT)
    assert positions
    return await replay(record, positions, WITHIN, CONTEXT, SpareTime(engine, 0.0))


@pytest.mark.parametrize("seed", [1, 2])
async def test_it_finds_what_the_slow_way_finds(seed: int) -> None:
    async with serving(runtime()) as engine:
        record = await recorded(engine, loose("a", seed, max_tokens=70))
        assert record.loosened
        found = await run(engine, record)
        assert found == close_to(obvious_findings(record, record.judgeable(WITHIN, CONTEXT)))


async def test_the_targets_own_words_always_come_back_and_lose_nothing() -> None:
    async with serving(runtime()) as engine:
        request = make_request(random_prompt(12, 4), max_tokens=80, ignore_eos=True)
        own, _ = await collect(engine.submit(request))
        found = await run(engine, record_of(request, own, [3, 20, 39]))
        assert found.reconverged == (True, True, True)
        assert found.gap == pytest.approx(0, abs=1e-4)


async def test_a_text_that_the_target_would_never_write_never_comes_back() -> None:
    async with serving(runtime()) as engine:
        request = make_request(random_prompt(12, 4), max_tokens=80, ignore_eos=True)
        own, _ = await collect(engine.submit(request))
        nonsense = own[:5] + random_prompt(75, 9)
        found = await run(engine, record_of(request, nonsense, [5, 20, 39]))
        assert found.reconverged == (False, False, False)
        assert found.gap > 1


async def test_who_comes_amid_a_replay_is_served_and_changes_nothing_of_it() -> None:
    on: Runtime = runtime()
    async with serving(on) as engine:
        record = await recorded(engine, loose("a", 2, max_tokens=70, ignore_eos=True))
        alone = await run(engine, record)
        before = await settled(engine)
        spare_time = SpareTime(engine, 0.0)
        task = asyncio.create_task(replay(record, record.judgeable(WITHIN, CONTEXT), WITHIN, CONTEXT, spare_time))
        users = 0
        while not task.done() and users < 25:
            await asyncio.sleep(0.02)
            await collect(engine.submit(ask(f"user{users}", seed=users, max_tokens=3)))
            users += 1
        assert await task == close_to(alone)
        assert spare_time.interruptions > 1
        stats = await settled(engine)
        assert sum(stats.finished.values()) == sum(before.finished.values()) + users
        assert_clean(on, stats)


class Until(StopCondition):
    """Ends an answer with this token."""

    def __init__(self, last: int) -> None:
        self.last = last

    def push(self, token_id: int) -> bool:
        return token_id == self.last


async def test_the_own_answer_ends_where_its_stop_condition_says() -> None:
    async with serving(runtime()) as engine:
        request = make_request(random_prompt(12, 4), max_tokens=100, ignore_eos=True)
        plain, _ = await collect(engine.submit(request))
        end = next(i for i in range(29, 60) if plain[i] not in plain[:i])
        own = plain[: end + 1]
        record = record_of(request, own, [8])
        record.new_stop = lambda: Until(own[-1])
        record.finish(FinishReason.STOP)
        found = await run(engine, record)
        assert found.own_logprob == pytest.approx(mean_logprob(list(request.prompt), own), abs=1e-3)
        assert found.reconverged == (True,)


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_near_an_end_the_target_must_end_there_with_the_same_words(kept: int) -> None:
    """The target's own text up to a token that stops it; `kept` of its words behind the loosened one remain its own."""
    async with serving(runtime()) as engine:
        request = make_request(random_prompt(12, 4), max_tokens=100, ignore_eos=True)
        plain, _ = await collect(engine.submit(request))
        end = next(i for i in range(12, 60) if plain[i] not in plain[:i])
        own = plain[: end + 1]
        first = end - 1 - kept
        for other in random_prompt(5, 8):
            delivered = [*own[:first], other, *own[first + 1 :]]
            record = record_of(request, delivered, [first])
            record.new_stop = lambda: Until(own[-1])
            record.finish(FinishReason.STOP)
            found = await run(engine, record)
            assert found.reconverged == (kept > 0,)


async def test_detours_end_where_the_answers_stop_condition_says() -> None:
    async with serving(runtime()) as engine:
        request = make_request(random_prompt(12, 4), max_tokens=100, ignore_eos=True)
        plain, _ = await collect(engine.submit(request))
        end = next(i for i in range(16, 60) if plain[i] not in plain[:i])
        record = record_of(request, plain[: end + 1], [3, end - 4])  # the last one's text is short: it must end there
        record.new_stop = lambda: Until(plain[end])
        record.finish(FinishReason.STOP)
        assert (await run(engine, record)).reconverged == (True, True)
        record.new_stop = lambda: None  # now the target goes on behind that token
        assert (await run(engine, record)).reconverged == (True, False)


async def test_a_replay_that_gets_nowhere_is_given_up() -> None:
    """Somebody comes whenever its prompt is half computed, of which nothing is kept."""
    on = runtime()
    async with serving(on) as engine:
        request = make_request(random_prompt(400, 4), max_tokens=80, ignore_eos=True)
        rounds, forward = 0, on.target.forward

        def count(layout: object) -> object:
            nonlocal rounds
            rounds += 1
            return forward(layout)  # type: ignore[arg-type]

        on.target.forward = count  # type: ignore[method-assign, assignment]
        spare_time = SpareTime(engine, 0.0)
        task = asyncio.create_task(
            replay(record_of(request, random_prompt(80, 3), [5]), [5], WITHIN, CONTEXT, spare_time)
        )
        for user in range(50):
            before = rounds
            while rounds < before + 5 and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.0005)
            if task.done():
                break
            await collect(engine.submit(ask(f"user{user}", prompt=4, seed=user, max_tokens=1)))
        with pytest.raises(ReplayInterruptedError):
            await task
        assert spare_time.interruptions == MOST_INTERRUPTIONS


async def test_an_engine_that_fails_is_no_finding() -> None:
    on = runtime()
    async with serving(on) as engine:
        request = make_request(random_prompt(12, 4), max_tokens=80, ignore_eos=True)
        record = record_of(request, random_prompt(80, 3), [5])

        def fail(layout: object) -> object:
            raise RuntimeError("no")

        on.target.forward = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(ReplayFailedError):
            await run(engine, record)


def test_positions_near_a_cut_are_not_judged_but_those_near_an_end_are() -> None:
    record = record_of(make_request(random_prompt(10, 1), max_tokens=60), list(range(3, 63)), [10, 20, 21, 55])
    assert record.judgeable(WITHIN, CONTEXT) == [10, 20]  # 60 - 40
    record.finish(FinishReason.STOP)
    assert record.judgeable(WITHIN, CONTEXT) == [10, 20, 21, 55]
    assert record.judgeable(WITHIN, 10 + 21 + SPAN) == [10, 20, 21]


def test_what_cannot_be_replayed_is_told_by_its_reason() -> None:
    prompt = random_prompt(5, 1)
    assert obstacle(make_request(prompt), False) is None
    assert obstacle(make_request(prompt), True) == "constrained"
    assert obstacle(make_request(prompt, temperature=0.7), False) == "sampled"
    assert obstacle(make_request(prompt, repetition_penalty=1.1), False) == "penalties"
