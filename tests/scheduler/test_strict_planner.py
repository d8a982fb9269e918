"""Many strict sequences: weighed in turns, they draft much as if all were weighed together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.forward_costs import ForwardCosts, RowCurve
from scheduler import strict_planner
from scheduler.draft_length import choose_drafts
from scheduler.draft_option import Base, Option, base_seconds
from scheduler.priced_drafts import Prices
from tests.scheduler.adaptive import costs, floor, strict
from tests.scheduler.floor import request

CHEAP = ForwardCosts(RowCurve({1: 0.1, 64: 0.11, 512: 0.2}), RowCurve({1: 0.005, 64: 0.008}))
CHANCES = st.floats(0.05, 0.95)


@settings(max_examples=150, deadline=None)
@given(CHANCES, CHANCES, st.integers(1, 12), st.floats(0.001, 0.5), st.floats(0.001, 0.5), st.sampled_from([0.0, 1.0]))
def test_at_the_rate_to_be_reached_one_sequence_alone_drafts_what_weighing_finds_best(
    first: float, later: float, cap: int, row: float, step: float, per_turn: float
) -> None:
    priced = ForwardCosts(RowCurve({1: 1.0, 101: 1.0 + 100 * row}), RowCurve({1: step, 2: step}))
    base, option = Base(1.0, 1, 1, 0), Option("model", first, later, cap, per_turn)
    best = choose_drafts(priced, base, [[option]])
    prices = Prices(priced, base, best.rate)
    prices.share_out(cap)
    drafts = prices.choose([option]).num_drafts
    seconds = base_seconds(priced, base) + drafts * (row + step * per_turn)
    tokens = 1 + sum(first * later**n for n in range(drafts))
    assert tokens / seconds == pytest.approx(best.rate, rel=1e-6)


@pytest.mark.parametrize("acceptance", [0.6, 0.9])
def test_a_crowd_is_about_as_fast_in_turns_as_when_all_are_weighed(
    acceptance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rate(at_once: int) -> float:
        monkeypatch.setattr(strict_planner, "AT_ONCE", at_once)
        on = floor(acceptance, costs(CHEAP), max_running=40, round_tokens=1024, prefill_chunk=512)
        on.pool.__init__(4000, 4)  # type: ignore[misc]
        for n in range(40):
            on.add(strict(str(n), max_tokens=300))
        tokens = seconds = 0.0
        for _ in range(40):
            drafts = [item.num_drafts for item in on.round().values()]
            seconds += CHEAP.verify(len(drafts) + sum(drafts), len(drafts))
            assert CHEAP.draft is not None
            seconds += sum(CHEAP.draft.at(sum(count > step for count in drafts)) for step in range(max(drafts)))
            tokens += sum(map(len, on.committed.values()))
        return tokens / seconds

    assert rate(8) >= 0.95 * rate(1000)


def test_a_crowd_whose_drafts_are_wrong_soon_gives_up() -> None:
    on = floor(0.0, costs(CHEAP), max_running=40, round_tokens=1024, prefill_chunk=512)
    on.pool.__init__(4000, 4)  # type: ignore[misc]
    for n in range(40):
        on.add(strict(str(n), max_tokens=100))
    drafts = [sum(bool(item.num_drafts) for item in on.round().values()) for _ in range(60)]
    assert sum(drafts[20:]) < 0.1 * 40 * 40


def test_what_a_grammar_forces_is_drafted_although_it_is_not_the_sequences_turn() -> None:
    on = floor(0.9, costs(CHEAP), max_running=40, round_tokens=1024, prefill_chunk=512)
    on.pool.__init__(4000, 4)  # type: ignore[misc]
    for n in range(40):
        on.add(strict(str(n)))
    for _ in range(5):
        on.round()
    for job in on.jobs.values():
        job.sequence.forced = 3
    forced = [item for item in on.round().values() if (item.drafter, item.num_drafts) == ("none", 3)]
    assert len(forced) >= 24


def test_a_crowd_beside_an_off_request_keeps_within_what_that_was_promised() -> None:
    on = floor(0.9, costs(CHEAP), max_running=41, round_tokens=1024, prefill_chunk=512)
    on.pool.__init__(4000, 4)  # type: ignore[misc]
    on.add(request("off", max_tokens=200))
    for n in range(40):
        on.add(strict(str(n)))
    while not all(job.sequence.output_len for job in on.jobs.values()):
        on.round()
    for _ in range(20):
        items = on.round().values()
        rows, count = sum(1 + item.num_drafts for item in items), len(items)
        assert CHEAP.verify(rows, count) <= 1.5 * CHEAP.verify(count, count)
