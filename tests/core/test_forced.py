"""What grammars leave no choice of, asked side by side, against a fresh matcher's answer for each alone."""

import random
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

import pytest

import core.grammar
from core.drafters.base import DraftJob
from core.drafters.forced import MOST_FORCED, force, look_ahead
from core.round import RoundItem, RoundPlan, run_round
from core.sequence import Sequence
from tests.grammars import grammar, json_lark, legal_after, regex_lark
from tests.tiny import EOS, VOCAB, Driver, make_request, make_runtime, random_model

KEYS: dict[str, object] = {
    "type": "object",
    "properties": {"customer": {"type": "integer"}, "address": {"enum": ["ab", "abc"]}},
    "required": ["customer", "address"],
    "additionalProperties": False,
}
LARKS = {
    "keys": json_lark(KEYS),
    "literal": regex_lark("the answer is [0-9]{2}, as everybody knows"),
    "ending": regex_lark("abc"),
    "free": regex_lark("[a-z]+"),
    "one-way": 'start: "abc" "10"',
}
UNKNOWN = VOCAB  # stands for a choice, or the end


def only_choice(lark: str, tokens: Items[int]) -> int:
    """By a fresh matcher; an end token is none, for it is not drafted unless it is one of the grammar's own."""
    legal = legal_after(lark, tokens) or set()
    return legal.pop() if len(legal) == 1 and legal != {EOS} else UNKNOWN


def run_after(lark: str, tokens: list[int]) -> list[int]:
    run: list[int] = []
    while (token := only_choice(lark, tokens + run)) != UNKNOWN:
        run.append(token)
    return run


def somewhere_in(lark: str, rng: random.Random) -> tuple[Sequence, list[int]]:
    """A sequence that has taken some legal tokens, and those."""
    place, taken = grammar(lark), list[int]()
    for _ in range(rng.randint(0, 12)):
        legal = (legal_after(lark, taken) or {EOS}) - {EOS}
        if not legal:
            break
        taken.append(rng.choice(sorted(legal)))
        assert place.push(taken[-1])
    return Sequence(make_request([5, 6]), grammar=place), taken


def test_looking_ahead_counts_what_each_grammar_forces() -> None:
    rng = random.Random(1)
    names = sorted(LARKS) * 8
    places = [somewhere_in(LARKS[name], rng) for name in names]
    look_ahead([sequence for sequence, _ in places])
    for name, (sequence, taken) in zip(names, places, strict=True):
        assert sequence.forced == min(MOST_FORCED, len(run_after(LARKS[name], taken))), (name, taken)
    assert len({sequence.forced for sequence, _ in places}) > 3


def test_a_batch_of_jobs_takes_what_each_alone_would() -> None:
    rng = random.Random(2)
    names = sorted(LARKS) * 8
    places = [somewhere_in(LARKS[name], rng) for name in names]
    jobs = [DraftJob(sequence, limit=rng.randint(0, 9)) for sequence, _ in places]
    free = [DraftJob(Sequence(make_request([5])), limit) for limit in (0, 1)]
    more = force([*jobs, *free])
    for name, job, (_, taken) in zip(names, jobs, places, strict=True):
        lark = LARKS[name]
        assert job.drafts == run_after(lark, taken)[: job.limit]
        complete = (legal_after(lark, taken + job.drafts) or {EOS}) == {EOS} and job.drafts
        assert any(job is other for other in more) == (len(job.drafts) < job.limit and not complete)
    assert free[1] in more
    assert free[0] not in more


@pytest.mark.parametrize("asking", [look_ahead, lambda sequences: force([DraftJob(s, 9) for s in sequences])])
def test_many_grammars_are_asked_as_often_as_one(asking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    fill = core.grammar.fill_next_token_bitmask_par

    def counted(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        fill(*arguments)

    monkeypatch.setattr(core.grammar, "fill_next_token_bitmask_par", counted)
    needed = []
    for count in (1, 6):
        calls = 0
        asking([Sequence(make_request([5]), grammar=grammar(LARKS["literal"])) for _ in range(count)])
        needed.append(calls)
    assert needed[0] == needed[1] > 5


def test_after_each_round_a_sequence_knows_what_is_forced_next() -> None:
    runtime = make_runtime(random_model(1, sharpness=1.0))
    request = make_request([5, 6, 7], drafter="prompt_lookup", num_draft_tokens=4)
    sequence = Sequence(replace(request, adaptive=True), grammar=grammar(LARKS["keys"]))
    Driver(runtime).step([sequence])
    seen = set()
    while not sequence.finished:
        seen.add(sequence.forced)
        assert sequence.forced == len(run_after(LARKS["keys"], sequence.output))
        assert runtime.pool.grow(sequence, len(sequence.tokens) + 4)
        drafted = run_round(RoundPlan((RoundItem(sequence, 1, min(4, sequence.forced), "none"),)), runtime)
        assert drafted.items[0].accepted == drafted.items[0].drafted
    assert len(seen) > 2
