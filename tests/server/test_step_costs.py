import time
from collections import Counter

import pytest
import torch

from core.forward_costs import ForwardCosts, RowCurve
from core.layout import RaggedLayout
from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner
from core.runtime import Runtime
from server import step_costs
from server.step_costs import measure_step_costs
from tests.scheduler.floor import limits
from tests.simulated_device import DEVICE, SimulatedDevice, moved
from tests.tiny import loaded, random_model

PAUSE = 0.3


class Disturbed(ModelRunner):
    """Other load on the machine holds up the first two forwards of every size, the second one longer."""

    def forward(self, layout: RaggedLayout) -> torch.Tensor:
        seen = self.__dict__.setdefault("seen", [])
        if (before := seen.count(layout.num_logits)) < 2:
            time.sleep(PAUSE * (1 + before))
        seen.append(layout.num_logits)
        return super().forward(layout)


def runtime(kind: type[ModelRunner] = ModelRunner, blocks: int = 64) -> Runtime:
    return Runtime(target=kind(loaded(random_model(1)), blocks, 16), pool=BlockPool(blocks, 16))


@pytest.mark.parametrize(
    ("max_running", "blocks", "sizes"),
    [(6, 64, [1, 2, 4, 6]), (8, 64, [1, 2, 4, 8]), (1, 64, [1]), (99, 64, [1, 2, 4, 8, 16]), (16, 11, [1, 2, 3])],
)
def test_every_batch_size_has_a_measured_cost(max_running: int, blocks: int, sizes: list[int]) -> None:
    measured = runtime(blocks=blocks)
    measure_step_costs(measured, limits(max_running=max_running))
    costs = measured.cost.as_dict()
    assert list(costs) == sizes
    assert all(0 < seconds < 10 for seconds in costs.values())
    assert measured.pool.num_free == blocks


def test_another_device_is_measured_up_to_all_that_may_run() -> None:
    with SimulatedDevice():
        runner = ModelRunner(loaded(moved(random_model(1)), device=DEVICE), 64, 16, "sdpa")
        measured = Runtime(target=runner, pool=BlockPool(64, 16))
        measure_step_costs(measured, limits(max_running=24, round_tokens=100, prefill_chunk=80))
    assert list(measured.cost.as_dict()) == [1, 2, 4, 8, 16, 24]
    assert measured.forward_costs.now is not None
    assert list(measured.forward_costs.now.target.points) == [1, 2, 4, 8, 16, 32, 64, 100]


def test_costs_below_a_millisecond_are_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_costs, "_seconds", lambda runner, step: 0.000254)
    with caplog.at_level("INFO"):
        measure_step_costs(runtime(), limits(max_running=1))
    assert "a plain step takes 0.254 ms for 1" in caplog.text


def test_a_disturbed_forward_is_not_taken_for_the_cost() -> None:
    measured = runtime(Disturbed)
    measure_step_costs(measured, limits(max_running=2))
    assert all(seconds < PAUSE for seconds in measured.cost.as_dict().values())


def test_one_batch_size_that_was_held_up_makes_no_sequence_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        step_costs, "_seconds", lambda _, step: (50.0 if len(step.segments) == 8 else 0.1) + step.num_logits
    )
    measured = runtime()
    measure_step_costs(measured, limits(max_running=8))
    assert measured.forward_costs.now is not None
    assert measured.forward_costs.now.per_sequence == 0.0


def test_steps_have_a_context_however_large_the_blocks_are() -> None:
    contexts: list[int] = []

    class Watched(ModelRunner):
        def forward(self, layout: RaggedLayout) -> torch.Tensor:
            contexts.extend(segment.context for segment in layout.segments if segment.num_logits)
            return super().forward(layout)

    watched = Runtime(target=Watched(loaded(random_model(1)), 4, 256), pool=BlockPool(4, 256))
    measure_step_costs(watched, limits(max_running=2))
    assert set(contexts) == {256, 768}  # behind one block, and as long as the pool allows


def test_blocks_and_draft_steps_are_measured_and_pinned_figures_are_left_to_loose_lengths() -> None:
    made = runtime()
    made.draft = ModelRunner(loaded(random_model(2, layers=1)), 64, 16)
    pinned = ForwardCosts(RowCurve({1: 1.0, 8: 2.0}), RowCurve({1: 0.1}))
    measure_step_costs(made, limits(max_running=4), pinned)
    assert made.forward_costs.start is pinned
    measured = made.forward_costs.now
    assert measured is not None
    assert measured.draft is not None
    assert list(measured.target.points) == [1, 2, 4, 8, 16]
    assert list(measured.draft.points) == [1, 2, 4, 8, 32]  # the last one reads a piece of a text
    assert measured.per_sequence >= 0 <= measured.per_position


@pytest.mark.parametrize(
    ("seconds", "runs", "fastest"),
    [([2.0, 2.01, 1.0], 2, 2.0), ([2.0, 2.5, 2.01], 3, 2.0), ([2.5, 2.0, 1.0], 3, 1.0)],
)
def test_a_step_is_run_again_until_two_runs_agree(
    seconds: list[float], runs: int, fastest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[int] = Counter()

    def next_of(runner: ModelRunner, step: RaggedLayout) -> float:
        seen[id(step)] += 1
        return seconds[seen[id(step)] - 1]

    monkeypatch.setattr(step_costs, "_seconds", next_of)
    measured = runtime()
    measure_step_costs(measured, limits(max_running=2))
    assert set(seen.values()) == {runs}
    assert measured.cost.as_dict() == {1: fastest, 2: fastest}


def test_steps_attend_to_memory_that_was_written() -> None:
    made = runtime()
    measure_step_costs(made, limits(max_running=4))
    for layer in range(made.target.loaded.config.num_hidden_layers):
        for held in made.target.cache.layer(layer):
            assert all(block.any() for block in held[: _read_blocks(made)])


def _read_blocks(made: Runtime) -> int:
    return min(1024 // made.pool.block_size, made.pool.num_blocks - 1)
