"""What neighbours that never draft are promised."""

import itertools

import pytest

from core.sequence import GenerationRequest
from scheduler.draft_planner import COMPANY
from tests.scheduler.adaptive import DEMO, floor, loose, strict
from tests.scheduler.floor import request


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


def test_strict_blocks_of_fixed_length_are_cut_too() -> None:
    on = floor(0.9)
    on.add(request("off", max_tokens=60))
    on.add(request("b", "strict", 8, max_tokens=60, drafter="model"))
    on.round()
    blocks = [on.round()["b"].num_drafts for _ in range(20)]
    assert DEMO.draft is not None
    for drafts in blocks:
        assert DEMO.verify(2 + drafts) + drafts * DEMO.draft.at(1) <= COMPANY * DEMO.verify(2)
    assert sum(blocks) >= 15


def test_what_the_draft_model_reads_ahead_is_kept_short() -> None:
    on = floor(0.9, max_running=4, round_tokens=512, prefill_chunk=256, max_context=2000)
    on.pool.__init__(2000, 4)  # type: ignore[misc]
    on.add(request("first", prompt=1000, max_tokens=2, text="x"))
    while "first" not in on.finished:
        on.round()
    on.add(request("off", max_tokens=500))
    on.round()
    on.add(loose("b", prompt=1000, text="x"))
    read = [0]
    while not on.boundaries.get("b"):
        on.round()
        read.append(on.jobs["b"].sequence.draft_tokens)
    steps = [after - before for before, after in itertools.pairwise(read)]
    assert 0 < max(steps) <= 256 // 8
    assert sum(steps) >= 990
