"""Drafts that only show whether drafting pays: who is tried, and what is learnt from it."""

from core.forward_costs import ForwardCosts, RowCurve
from core.round import RoundItem
from scheduler.draft_option import Option
from scheduler.drafting import Drafting, Wish
from scheduler.probing import due
from tests.scheduler.adaptive import costs, floor, lengths, strict
from tests.scheduler.floor import request


def test_probes_find_out_that_drafting_pays_again() -> None:
    on = floor(0.0)
    on.add(strict("a", max_tokens=400))
    for _ in range(60):
        on.round()
    on.acceptance = 1.0
    on.run()
    assert max(lengths(on)[60:]) == 8


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
    on = floor(0.0, max_context=800)
    for n in range(3):
        on.add(strict(str(n), max_tokens=700))
    on.run()
    late = [sum(map(bool, lengths(on, str(n))[20:])) for n in range(3)]
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
