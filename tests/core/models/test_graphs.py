"""Recorded forwards against plain ones on random batches: same logits, same KV, nothing written where it must not."""

import copy
import random
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.layout import RaggedLayout, Segment
from core.models import graphs
from core.models.attention import BackendSpec
from core.models.attention_flash import prepare_flash, prepare_uniform_flash
from core.models.graphs import shape_for
from core.models.kv_cache import BlockPool, KVCache
from core.models.loader import load_model
from core.models.runner import ModelRunner
from core.models.uniform_batch import UniformShape
from core.runtime import Runtime
from core.sequence import Sequence
from tests.core.models.flash_stand_in import flash_attn_varlen_func
from tests.core.models.tiny import save_model
from tests.core.test_exactness import Comparison, draft_model, request_for, target_model
from tests.simulated_device import DEVICE, SimulatedDevice, moved
from tests.tape_recorder import TapeRecorder
from tests.tiny import EOS, Driver, loaded, make_request, outputs, random_model

SIZE, BLOCKS = 16, 90
FLASH = BackendSpec(
    "stand-in",
    partial(prepare_flash, varlen=flash_attn_varlen_func),
    block_size=256,
    uniform=partial(prepare_uniform_flash, varlen=flash_attn_varlen_func),
)


@st.composite
def batches(draw: st.DrawFn, size: int = SIZE, blocks: int = BLOCKS) -> RaggedLayout:
    """Decode rows and verify blocks of any number of sequences, over blocks in any order."""
    free = list(range(blocks))
    random.Random(draw(st.integers(0, 99))).shuffle(free)
    segments = []
    for _ in range(draw(st.integers(1, 9))):
        context = draw(st.sampled_from([0, 1, size - 1, size]) | st.integers(0, 9 * SIZE))
        rows = draw(st.sampled_from([1, 1, 2, 3, 5, 8]))
        needed = -(-(context + rows) // size)
        if needed > len(free):
            break
        tokens = tuple(draw(st.lists(st.integers(3, 150), min_size=rows, max_size=rows)))
        segments.append(Segment(tokens, context, tuple(free[:needed]), draw(st.integers(0, rows))))
        free = free[needed:]
    segments[0] = Segment(segments[0].tokens, segments[0].context, segments[0].blocks, 1)
    return RaggedLayout.build(segments, size)


def randomised(cache: KVCache, num_layers: int) -> list[Tensor]:
    """The cache's tensors, filled with numbers."""
    torch.manual_seed(0)
    tensors = [tensor for layer in range(num_layers) for tensor in cache.layer(layer)]
    for tensor in tensors:
        tensor.normal_()
    return tensors


def check(plain: ModelRunner, recorded: ModelRunner, layout: RaggedLayout) -> None:
    """The same logits, and the same KV everywhere but in the scratch block, which is the last."""
    layers = plain.loaded.config.num_hidden_layers
    here, there = randomised(plain.cache, layers), randomised(recorded.cache, layers)
    for one, other in zip(here, there, strict=True):
        other[: len(one)] = one
    want, got = plain.forward(layout), recorded.forward(layout)
    torch.testing.assert_close(got, want, atol=2e-3, rtol=1e-3)
    got.add_(1.0)  # a plain tensor of the caller's own
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(other[: len(one)], one, atol=1e-4, rtol=1e-3)


def test_any_small_batch_gives_what_the_plain_forward_gives() -> None:
    tape = TapeRecorder()
    plain = ModelRunner(loaded(target_model(), "plain"), BLOCKS, SIZE)
    recorded = ModelRunner(loaded(target_model(), "recorded"), BLOCKS, SIZE, recorder=tape)

    @settings(max_examples=80, deadline=None)
    @given(batches())
    def test(layout: RaggedLayout) -> None:
        check(plain, recorded, layout)

    test()
    assert recorded.recorded is not None
    assert len(recorded.recorded.shapes) == tape.records
    assert 4 < tape.records < tape.replays / 2  # most batches found a recording made for another


@pytest.mark.parametrize("family", ["mistral-window", "gemma2", "qwen3"])
def test_windows_and_soft_caps_are_recorded_too(family: str, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    plain = ModelRunner(load_model(tmp_path, "float32"), BLOCKS, SIZE)
    tape = TapeRecorder()
    recorded = ModelRunner(load_model(tmp_path, "float32"), BLOCKS, SIZE, recorder=tape)

    @settings(max_examples=10, deadline=None)
    @given(batches())
    def test(layout: RaggedLayout) -> None:
        check(plain, recorded, layout)

    test()
    assert tape.replays


class Again:
    """Calls the function again, for what cannot be taped: the stand-in for flash-attn asks its tensors."""

    def record(self, run):
        run()
        return run


def test_flash_attn_gets_a_rectangle_as_it_gets_a_ragged_batch() -> None:
    model = copy.deepcopy(target_model()).bfloat16()
    plain = ModelRunner(loaded(model, "plain", torch.bfloat16), 9, 256, FLASH)
    recorded = ModelRunner(loaded(model, "again", torch.bfloat16), 9, 256, FLASH, Again())

    @settings(max_examples=15, deadline=None)
    @given(batches(size=256, blocks=9))
    def test(layout: RaggedLayout) -> None:
        layers = plain.loaded.config.num_hidden_layers
        for one, other in zip(randomised(plain.cache, layers), randomised(recorded.cache, layers), strict=True):
            other[: len(one)] = one
        want, got = plain.forward(layout), recorded.forward(layout)
        assert (got - want).norm() < 0.03 * want.norm()

    test()


def test_speculation_over_recorded_forwards_delivers_the_tokens_of_plain_decoding() -> None:
    target, draft = (
        ModelRunner(loaded(model, name), 400, SIZE, recorder=TapeRecorder())
        for model, name in ((target_model(), "target"), (draft_model("noisy"), "draft"))
    )
    runtime = Runtime(target, BlockPool(400, SIZE), draft, frozenset({0, 1, EOS}))
    requests = [request_for(name, drafter="multilevel", num_draft_tokens=5) for name in ("greedy", "t1.3-top_k")]
    comparison = Comparison(runtime)
    for request, got in zip(requests, outputs(runtime, requests), strict=True):
        comparison.check(request, got)
    assert comparison.excuses <= 1
    assert target.recorded is not None
    assert {shape.rows for shape in target.recorded.shapes} >= {8}
    assert draft.recorded is not None
    assert draft.recorded.shapes


def segments(*rows: int, context: int = 20) -> RaggedLayout:
    blocks = tuple(range(-(-(context + max(rows)) // SIZE)))
    return RaggedLayout.build([Segment((5,) * n, context, blocks, 1) for n in rows], SIZE)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (segments(1), UniformShape(1, 1, 32)),
        (segments(1, 1, 1), UniformShape(4, 1, 32)),
        (segments(3, 1), UniformShape(2, 4, 32)),
        (segments(*[9] * 9), UniformShape(16, 12, 32)),
        (segments(*[1] * 17, context=512), UniformShape(24, 1, 128)),
        (segments(33), None),  # a piece of a prompt
        (segments(*[17] * 16), None),  # too many rows
        (RaggedLayout.build([Segment((5,), 0, (0,), 0)], SIZE), None),  # nothing to choose from
    ],
)
def test_a_batch_is_padded_up_to_one_of_a_few_shapes(layout: RaggedLayout, shape: UniformShape | None) -> None:
    assert shape_for(layout) == shape


def test_a_rectangle_has_no_more_keys_than_the_backend_takes() -> None:
    layout = segments(1, 1, 1, context=200)
    assert shape_for(layout, 4 * 512) == UniformShape(4, 1, 32)
    assert shape_for(layout, 4 * 512 - 1) is None


def test_only_so_many_shapes_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 1)
    tape = TapeRecorder()
    runner = ModelRunner(loaded(target_model()), BLOCKS, SIZE, recorder=tape)
    for layout in (segments(1), segments(1, 1), segments(1)):
        assert len(runner.forward(layout)) == len(layout.segments)
    assert (tape.records, tape.replays) == (1, 2)


class Refusing:
    attempts = 0

    def record(self, run):
        self.attempts += 1
        raise RuntimeError("it waits for the device")


def test_what_cannot_be_recorded_is_tried_once_and_runs_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Refusing()
    runner = ModelRunner(loaded(target_model()), BLOCKS, SIZE, recorder=refusing)
    plain = ModelRunner(loaded(target_model()), BLOCKS, SIZE)
    for layout in (segments(3, context=0), segments(1, 1, context=0)):
        torch.testing.assert_close(runner.forward(layout), plain.forward(layout))
    assert refusing.attempts == 1
    assert "have not been recorded in CUDA graphs run without: it waits for the device" in caplog.text


def test_what_was_recorded_before_one_failed_is_used_still() -> None:
    tape = TapeRecorder()
    runner = ModelRunner(loaded(target_model()), BLOCKS, SIZE, recorder=tape)
    runner.forward(segments(1, context=0))
    tape.record = Refusing().record  # type: ignore[method-assign]
    for rows in ((1,), (1, 1), (1,)):
        runner.forward(segments(*rows, context=0))
    assert (tape.records, tape.replays) == (1, 3)


def test_a_backend_that_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match="attention backend own cannot be recorded"):
        ModelRunner(loaded(target_model()), 4, 256, BackendSpec("own", FLASH.prepare), TapeRecorder())


def test_a_recorded_forward_takes_one_copy_and_no_waiting() -> None:
    with SimulatedDevice() as device:
        model = loaded(moved(random_model(3)), device=DEVICE)
        runner = ModelRunner(model, BLOCKS, SIZE, recorder=Again())
        runner.forward(segments(2, 1, context=0))
        device.waits.clear()
        device.copies.clear()
        runner.forward(segments(1, 2))
        assert (device.waits, device.copies) == ([], ["aten::_to_copy"])


def one_row_each(count: int) -> RaggedLayout:
    """A shape of its own for each power of two."""
    return RaggedLayout.build([Segment((5,), 3, (block,), 1) for block in range(count)], SIZE)


def test_once_all_places_are_taken_a_shape_that_keeps_coming_takes_that_of_the_longest_unused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    tape = TapeRecorder()
    plain = ModelRunner(loaded(target_model(), "plain"), BLOCKS, SIZE)
    runner = ModelRunner(loaded(target_model(), "recorded"), BLOCKS, SIZE, recorder=tape)
    assert runner.recorded is not None

    def sequences_of_shapes() -> list[int]:
        return [shape.sequences for shape in runner.recorded.shapes]

    for count in (1, 2, 1):
        runner.forward(one_row_each(count))
    assert sequences_of_shapes() == [2, 1]
    for turn in range(1, graphs.PATIENCE + 1):
        assert tape.records == runner.records == 2
        check(plain, runner, one_row_each(4))
        assert turn == graphs.PATIENCE or sequences_of_shapes() == [2, 1]
    assert sequences_of_shapes() == [1, 4]
    assert tape.records == runner.records == 3
    for count in (8, 2) * (graphs.PATIENCE - 1):
        check(plain, runner, one_row_each(count))
    assert sequences_of_shapes() == [1, 4]
    check(plain, runner, one_row_each(2))
    assert sequences_of_shapes() == [4, 2]


def test_a_round_that_records_teaches_nothing_of_what_rounds_cost() -> None:
    runner = ModelRunner(loaded(target_model(), "target"), 400, SIZE, recorder=TapeRecorder())
    runtime = Runtime(runner, BlockPool(400, SIZE))
    driver, observed = Driver(runtime), []
    runtime.forward_costs.observe = lambda *figures: observed.append(figures)  # type: ignore[method-assign]
    sequence = Sequence(make_request([5, 6, 7], ignore_eos=True))
    learnt = []
    for _ in range(4):
        driver.step([sequence])
        learnt.append((len(observed), len(runtime.cost.as_dict())))
    # The prompt, the recording of one row, and its replays.
    assert runner.records == 2
    assert learnt == [(0, 0), (0, 0), (1, 1), (2, 1)]
