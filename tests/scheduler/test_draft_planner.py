"""Adaptive lengths on the shop floor: what is learnt, and what may depend on whom."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.forward_costs import ForwardCosts, LiveCosts, RowCurve
from scheduler.draft_length import choose_drafts
from scheduler.draft_option import Base, Option, base_seconds
from scheduler.draft_planner import COMPANY
from tests.scheduler.adaptive import DEMO, costs, floor, lengths, loose, seconds_of, strict
from tests.scheduler.floor import request


def test_a_draft_model_that_is_right_drafts_long_blocks() -> None:
    on = floor(1.0)
    on.add(strict("a"))
    on.run()
    assert lengths(on)[-5:-1] == [8, 8, 8, 8]


def test_one_that_is_wrong_is_given_up_within_a_few_rounds_and_hardly_tried_again() -> None:
    on = floor(0.0)
    on.add(strict("a"))
    on.run()
    drafts = lengths(on)
    assert len(drafts) == 299
    assert sum(map(bool, drafts[:20])) <= 4
    assert sum(map(bool, drafts[20:])) <= 6
    assert all(count <= 2 for count in drafts[20:])
    assert seconds_of(drafts) <= 1.03 * seconds_of([0] * 299)


def test_a_newcomer_learns_from_those_before_it() -> None:
    on = floor(0.0)
    for name in ("a", "b", "c"):
        on.add(strict(name, max_tokens=100))
        on.run()
    assert sum(map(bool, lengths(on, "c")[:5])) <= 1


def test_a_draft_model_that_doubts_what_the_target_takes_is_let_go_on() -> None:
    """By its own word alone, 0.75 for each draft, it would stop after one or two."""
    on = floor(0.96)
    on.confidence = 0.75
    on.add(strict("a", drafts=12))
    on.run()
    late = lengths(on)[10:-1]
    assert sum(late) / len(late) >= 4


def test_one_that_is_surer_than_it_is_right_is_stopped_earlier() -> None:
    def mean(confidence: float) -> float:
        on = floor(0.75)
        on.confidence = confidence
        on.add(strict("a", drafts=12))
        on.run()
        return sum(lengths(on)) / len(lengths(on))

    assert abs(mean(0.99) - mean(0.75)) <= 1.5


@pytest.mark.parametrize("prompt", [20, 60, 100, 250])
@pytest.mark.parametrize("running", [1, 4, 6])
@pytest.mark.parametrize("beside_off", [False, True])
def test_a_text_that_the_draft_model_has_yet_to_read_keeps_nobody_from_drafting(
    prompt: int, running: int, beside_off: bool
) -> None:
    on = floor(0.97, max_context=1500, prefill_chunk=256, round_tokens=512)
    on.pool.__init__(3000, 4)  # type: ignore[misc]
    if beside_off:
        on.add(request("off", max_tokens=1200))
        on.round()
    for n in range(running):
        asked = request(f"{n}", "strict", 8, prompt, 1200, drafter="model", adaptive=True)
        on.add(asked)
    drafts = sum(item.num_drafts for _ in range(60) for item in on.round().values())
    count = running + beside_off
    base = Base(float(count), count, count, 0)
    if beside_off:
        base = base._replace(most_seconds=COMPANY * base_seconds(DEMO, base))
    verdict = choose_drafts(DEMO, base, [[Option("model", 0.97, 0.97, 8, 1.0)]] * running)
    assert drafts >= 30 * sum(choice.num_drafts for choice in verdict.choices)


def test_a_full_house_does_not_draft() -> None:
    dear = ForwardCosts(RowCurve({1: 0.1, 16: 1.6}), RowCurve({1: 0.03, 16: 0.4}))
    on = floor(0.7, costs(dear))
    for n in range(16):
        on.add(strict(str(n), max_tokens=60))
    on.run()
    drafted = [drafts for name in on.boundaries for drafts in lengths(on, name)]
    assert sum(map(bool, drafted)) < 0.05 * len(drafted)


@settings(max_examples=40, deadline=None)
@given(
    company=st.lists(
        st.tuples(
            st.sampled_from(["off", "strict", "fly"]), st.integers(1, 12), st.integers(1, 40), st.integers(-1, 1)
        ),
        max_size=5,
    ),
    num_blocks=st.integers(24, 60),
    slower=st.floats(0.2, 5.0),
    confidence=st.one_of(st.none(), st.floats(0.5, 1.0)),
)
def test_a_loose_sequences_blocks_are_its_own_affair(
    company: list[tuple[str, int, int, int]], num_blocks: int, slower: float, confidence: float | None
) -> None:
    """Whoever runs beside it, preempts it or has taught the server, whatever rounds cost meanwhile."""
    mine = loose("mine", max_tokens=40)
    now = ForwardCosts(RowCurve({1: 0.1 * slower, 8: 0.5}), RowCurve({1: 0.03, 8: 0.3}))
    crowded = floor(0.8, costs(now=now), prefill_chunk=12, max_context=90)
    crowded.pool.__init__(num_blocks, 4)  # type: ignore[misc]
    crowded.confidence = confidence
    for n, (verifier, drafts, tokens, priority) in enumerate(company):
        k = 0 if verifier == "off" else drafts
        crowded.add(request(f"{n}", verifier, k, 9, tokens, priority, "model", adaptive=True))
    crowded.add(mine, at=5.0)
    crowded.run()
    alone = floor(0.8, max_context=90)
    alone.confidence = confidence
    alone.add(mine)
    alone.run()
    assert crowded.boundaries["mine"] == alone.boundaries["mine"]


def test_lengths_are_fixed_where_nothing_was_measured() -> None:
    on = floor(0.5, LiveCosts())
    on.add(strict("a", drafts=5, max_tokens=30))
    on.add(loose("b", drafts=9, max_tokens=30))
    on.run()
    assert set(lengths(on, "b")) == {9}
    assert lengths(on)[0] == 5


def test_what_a_grammar_forces_is_drafted_whoever_else_could_draft() -> None:
    on = floor(1.0)
    on.add(request("a", "strict", 8, drafter="prompt_lookup", adaptive=True))
    on.round()
    on.jobs["a"].sequence.forced = 5
    item = on.round()["a"]
    assert (item.drafter, item.num_drafts) == ("none", 5)


def test_prompts_are_read_by_the_draft_model_only_where_its_drafts_may_pay() -> None:
    for target, read in ({1: 0.1, 16: 0.11}, True), ({1: 0.1, 16: 1.6}, False):
        on = floor(0.7, costs(ForwardCosts(RowCurve(target), RowCurve({1: 0.003, 64: 0.004}))))
        for n in range(8):
            on.add(request(f"{n}", "off", max_tokens=200))
        on.round()
        on.round()
        on.add(request("new", "strict", 8, 200, drafter="model", adaptive=True))
        while not on.jobs["new"].sequence.output_len:
            on.round()
        assert (on.jobs["new"].sequence.draft_tokens > 0) == read
