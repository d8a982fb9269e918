"""The heaviest round is one that could happen, and can be run on any device."""

import torch

from core.layout import RaggedLayout
from core.models.attention_batched import MOST_KEYS
from core.models.graphs import MOST_ROWS, shape_for
from core.models.runner import ModelRunner
from core.models.scratch import HeaviestRound, _largest_rectangle, _smallest_rectangle, measure_scratch, run_heaviest
from core.models.uniform_batch import UniformShape
from core.sampling_params import SamplingParams
from tests.core.test_exactness import target_model
from tests.simulated_device import DEVICE, SimulatedDevice, moved
from tests.tiny import loaded, random_model

HEAVIEST = HeaviestRound(rows=50, logit_rows=23, num_drafts=4, max_context=40)


def test_it_has_all_the_rows_asked_for_at_the_longest_context() -> None:
    layout = HEAVIEST.layout(16)
    assert (layout.num_rows, layout.num_logits) == (50, 23)
    assert max(layout.positions()) == 39
    assert [segment.context for segment in layout.segments] == [0, 30]
    blocks = HEAVIEST.verify_blocks(SamplingParams())
    assert [(block.first_row, len(block.drafts)) for block in blocks] == [(0, 4), (5, 4), (10, 4), (15, 4), (20, 2)]


def test_no_more_logits_than_rows() -> None:
    greedy = HeaviestRound(rows=6, logit_rows=99, num_drafts=3, max_context=40)
    assert greedy.layout(16).num_logits == 6
    assert sum(1 + len(block.drafts) for block in greedy.verify_blocks(SamplingParams())) == 6


def test_it_runs_on_a_device_and_leaves_the_model_as_it_was() -> None:
    layout: RaggedLayout = HEAVIEST.layout(16)
    before = ModelRunner(loaded(target_model(), "target"), 3, 16).forward(layout)
    with SimulatedDevice():
        run_heaviest(loaded(moved(random_model(3)), "target", device=DEVICE), "sdpa", 16, HEAVIEST)
    run_heaviest(loaded(target_model(), "target"), "sdpa", 16, HEAVIEST)
    assert torch.equal(ModelRunner(loaded(target_model(), "target"), 3, 16).forward(layout), before)


def test_a_cpus_memory_is_not_measured() -> None:
    assert measure_scratch(loaded(target_model(), "target"), "sdpa", 16, HEAVIEST) == 0


def test_a_crowd_is_of_many_long_sequences_but_no_more_than_can_be_copied_together() -> None:
    crowd = HEAVIEST.crowd(16)
    assert [(len(s.tokens), s.context, s.num_logits) for s in crowd.segments] == [(5, 35, 0)] * 5
    long = HeaviestRound(rows=500, logit_rows=500, num_drafts=4, max_context=100_000).crowd(16)
    assert len(long.segments) == 3
    assert len(HeaviestRound(rows=8, logit_rows=0, num_drafts=4, max_context=40).crowd(16).segments) == 1


def test_recordings_are_measured_by_the_largest_and_the_smallest_there_can_be() -> None:
    largest = shape_for(_largest_rectangle(100_000, 16), MOST_KEYS)
    assert largest == UniformShape(8, 32, MOST_KEYS // 8 // 16)
    assert largest.sequences * largest.rows == MOST_ROWS
    assert shape_for(_largest_rectangle(50, 16), MOST_KEYS) == UniformShape(8, 32, 32)
    assert shape_for(_smallest_rectangle(16), MOST_KEYS) == UniformShape(1, 1, 32)
