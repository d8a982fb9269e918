"""Adaptive lengths on the shop floor: what is learnt, what may depend on whom, and what neighbours are promised."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.drafters.model import DraftReach
from core.forward_costs import ForwardCosts, LiveCosts, RowCurve
from core.round import RoundItem
from core.sequence import GenerationRequest
from scheduler.draft_length import choose_drafts
from scheduler.draft_option import Base, Option, base_seconds
from scheduler.draft_planner import COMPANY
from scheduler.drafting import Drafting, Wish
from scheduler.probing import due
from tests.scheduler.floor import Floor, limits, request

DEMO = ForwardCosts(RowCurve({1: 0.1, 4: 0.11, 8: 0.15, 16: 0.22, 32: 0.38}), RowCurve({1: 0.03, 8: 0.04}))


def costs(measured: ForwardCosts = DEMO, now: ForwardCosts | None = None) -> LiveCosts:
    live = LiveCosts()
    live.begin(measured)
    if now is not None:
        live.now = now
    return live


def floor(acceptance: float | None, live: LiveCosts | None = None, **options: int) -> Floor:
    bounds = limits(**{"max_running": 16, "round_tokens": 256, **options})
    return Floor(limits=bounds, reach=DraftReach(1000), costs=live or costs(), acceptance=acceptance)


def strict(name: str, drafts: int = 8, max_tokens: int = 300, drafter: str = "model") -> GenerationRequest:
    return request(name, "strict", drafts, max_tokens=max_tokens, drafter=drafter, adaptive=True)


def loose(name: str, drafts: int = 12, max_tokens: int = 100, **options: object) -> GenerationRequest:
    return request(name, "fly", drafts, max_tokens=max_tokens, drafter="model", adaptive=True, **options)  # type: ignore[arg-type]


def lengths(on: Floor, name: str = "a") -> list[int]:
    return [drafts for _, drafts in on.boundaries[name]]


def seconds_of(drafts: list[int]) -> float:
    """A strict sequence's rounds alone."""
    assert DEMO.draft is not None
    return sum(DEMO.verify(1 + k) + k * DEMO.draft.at(1) for k in drafts)


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


def test_probes_find_out_that_drafting_pays_again() -> None:
    on = floor(0.0)
    on.add(strict("a", max_tokens=400))
    for _ in range(60):
        on.round()
    on.acceptance = 1.0
    on.run()
    assert max(lengths(on)[60:]) == 8


def test_a_draft_model_that_doubts_what_the_target_takes_is_let_go_on() -> None:
    """By its own word alone, 0.75 for each draft, it would stop after one or two."""
    on = floor(0.96)
    on.confidence = 0.75
    on.add(strict("a", drafts=12))
    on.run()
    late = lengths(on)[10:-1]
    assert sum(late) / len(late) >= 6


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
    on = floor(0.97, max_context=4096, prefill_chunk=256, round_tokens=512)
    on.pool.__init__(7000, 4)  # type: ignore[misc]
    if beside_off:
        on.add(request("off", max_tokens=3000))
        on.round()
    for n in range(running):
        asked = request(f"{n}", "strict", 8, prompt, 3000, drafter="model", adaptive=True)
        on.add(asked)
    drafts = sum(item.num_drafts for _ in range(100) for item in on.round().values())
    count = running + beside_off
    base = Base(float(count), count, count, 0)
    if beside_off:
        base = base._replace(most_seconds=COMPANY * base_seconds(DEMO, base))
    verdict = choose_drafts(DEMO, base, [[Option("model", 0.97, 0.97, 8, 1.0)]] * running)
    assert drafts >= 50 * sum(choice.num_drafts for choice in verdict.choices)


def test_lookup_that_a_grammar_forbids_is_given_up() -> None:
    """What lookup finds may be illegal round after round: the drafter then gives nothing, and that is a miss."""
    on = floor(1.0)
    on.add(request("a", "strict", 8, max_tokens=100, drafter="prompt_lookup", adaptive=True))
    on.round()
    job = on.jobs["a"]
    before = job.drafting.acceptance.first("prompt_lookup", 2)
    for _ in range(4):
        job.drafting.wish = Wish("prompt_lookup", 4, match=2)
        assert on.pool.grow(job.sequence, len(job.sequence.tokens) + 1)
        outcome = on.commit(job, RoundItem(job.sequence, 1))
        on.batcher.drafts.learn(job, 4, outcome)
    assert job.drafting.acceptance.first("prompt_lookup", 2) < before / 1.5


def test_a_block_that_the_answers_end_cuts_short_is_no_mistake() -> None:
    on = floor(1.0)
    on.add(strict("a", max_tokens=4))
    on.round()
    job = on.jobs["a"]
    job.drafting.wish = Wish("model", 8)
    assert on.pool.grow(job.sequence, len(job.sequence.tokens) + 9)
    on.batcher.drafts.learn(job, 8, on.commit(job, RoundItem(job.sequence, 1, 8)))
    record = job.drafting.acceptance.model
    assert job.sequence.finished
    assert record.later.hits == record.later.trials > 0


def test_all_that_wait_are_probed_in_turn() -> None:
    on = floor(0.0, max_context=1600)
    on.pool.__init__(3000, 4)  # type: ignore[misc]
    on.num_blocks = 3000
    for n in range(4):
        on.add(strict(str(n), max_tokens=1500))
    on.run()
    late = [sum(map(bool, lengths(on, str(n))[20:])) for n in range(4)]
    assert min(late) >= 1
    assert max(late) <= min(late) + 6


def test_paying_lookups_do_not_keep_the_draft_model_from_being_probed() -> None:
    drafting = Drafting()
    lookup, model = Option("prompt_lookup", 0.9, 0.9, 4), Option("multilevel", 0.1, 0.1, 4, 1.5)
    drafting.pause("prompt_lookup").idle, drafting.pause("multilevel").idle = 0, 9
    found = due(drafting, [lookup, model])
    assert found is not None
    assert found[0] is model


def test_a_full_house_is_looked_at_again_now_and_then() -> None:
    """A far point that was spoiled at start-up makes rows look too dear to draft, and only drafts can show it."""
    spoiled = ForwardCosts(RowCurve({1: 0.1, 4: 0.11, 8: 0.15, 16: 0.22, 32: 0.75}))
    true = ForwardCosts(RowCurve({1: 0.1, 4: 0.11, 8: 0.15, 16: 0.22, 32: 0.25}))
    live = costs(spoiled)
    on = floor(1.0, live)
    for n in range(16):
        on.add(request(f"{n}", "strict", 4, 10, 400, drafter="prompt_lookup", adaptive=True))
    for _ in range(3000):
        if len(on.finished) == 16:
            break
        items = on.round()
        rows = sum(item.num_tokens + item.num_drafts for item in items.values())
        live.observe(rows, len(items), 0, true.verify(rows, len(items)))
    assert live.now is not None
    assert live.now.target.at(32) < 0.7


def test_a_full_house_does_not_draft() -> None:
    dear = ForwardCosts(RowCurve({1: 0.1, 16: 1.6}), RowCurve({1: 0.03, 16: 0.4}))
    on = floor(0.7, costs(dear))
    for n in range(16):
        on.add(strict(str(n), max_tokens=60))
    on.run()
    drafted = [drafts for name in on.boundaries for drafts in lengths(on, name)]
    assert sum(map(bool, drafted)) < 0.05 * len(drafted)


@pytest.mark.parametrize("neighbour", [strict("b"), loose("b"), strict("b", drafter="prompt_lookup")], ids=str)
def test_an_off_request_waits_for_its_neighbours_drafts_at_most_half_a_round_on_average(
    neighbour: GenerationRequest,
) -> None:
    on = floor(0.9)
    on.add(request("off", max_tokens=80))
    on.add(neighbour)
    took = plain = 0.0
    while "off" not in on.finished and "b" not in on.finished:
        items = on.round()
        if items["off"].sequence.output_len > 2 and "b" in items:
            assert DEMO.draft is not None
            drafts = items["b"].num_drafts
            model = drafts * DEMO.draft.at(1) if neighbour.drafter == "model" else 0.0
            took += DEMO.verify(2 + drafts) + model
        else:
            took += DEMO.verify(1)
        plain += DEMO.verify(2)
    assert took <= 1.02 * COMPANY * plain


def test_a_loose_block_is_held_back_for_fewer_rounds_than_it_delivers_tokens() -> None:
    on = floor(0.9)
    on.add(request("off", max_tokens=200))
    on.add(loose("b", max_tokens=60))
    rounds = 0
    while "b" not in on.finished:
        on.round()
        rounds += 1
    assert rounds <= 60 + 3


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
)
def test_a_loose_sequences_blocks_are_its_own_affair(
    company: list[tuple[str, int, int, int]], num_blocks: int, slower: float
) -> None:
    """Whoever runs beside it, preempts it or has taught the server, whatever rounds cost meanwhile."""
    mine = loose("mine", max_tokens=40)
    now = ForwardCosts(RowCurve({1: 0.1 * slower, 8: 0.5}), RowCurve({1: 0.03, 8: 0.3}))
    crowded = floor(0.8, costs(now=now), prefill_chunk=12, max_context=90)
    crowded.pool.__init__(num_blocks, 4)  # type: ignore[misc]
    for n, (verifier, drafts, tokens, priority) in enumerate(company):
        k = 0 if verifier == "off" else drafts
        crowded.add(request(f"{n}", verifier, k, 9, tokens, priority, "model", adaptive=True))
    crowded.add(mine, at=5.0)
    crowded.run()
    alone = floor(0.8, max_context=90)
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
