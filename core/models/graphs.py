"""Recorded forwards: small batches as rectangles of a few sizes, each recorded once and replayed afterwards.

A forward of few rows costs a GPU less than the host needs to launch its kernels. A CUDA graph launches them all at
once, but replays them exactly as recorded: same kernels, same sizes, same addresses. So a batch is padded up to one
of a few shapes, its numbers are copied into a tensor that the shape's recording reads, and its logits taken from one
that all recordings write. Padding rows are fed token 0 at a slot of a scratch block that no sequence owns.

    segments             rows   rectangle 4 x 4      fed
    A                     3     . a0 a1 a2           '.' is padding, in front (uniform_batch.py)
    B                     1     . .  .  b0           as many blocks for each as hold 512, 2048, 8192 ... keys
    C                     3     . c0 c1 c2
                                . .  .  .            a sequence of padding alone: one key, in the scratch block

What records is handed in (`graphs_cuda.py` on CUDA), so that everything else runs on any device.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from core.device_copy import to_device
from core.layout import RaggedLayout, Segment
from core.models.attention_batched import LONGEST_ROWS
from core.models.uniform_batch import UniformBatch, UniformShape

log = logging.getLogger(__name__)

MOST_ROWS = 256
"""Rows of a rectangle, padding included. Beyond, the device takes longer than the host."""

MOST_GRAPHS = 48
"""Recordings of a model at a time: each takes some of the device's memory."""

PATIENCE = 8
"""How often a shape is run unrecorded, once there are so many, before it takes the place of the one that was used
longest ago. A recording takes as long as several forwards, so more shapes in turn than there is room for must not
make each other be recorded over and over."""

_LEAST_KEYS = 512  # of each sequence that a shape has room for
_MORE_KEYS = 4  # times as many in the next larger shape: a few recordings serve texts of any length

Replay = Callable[[], None]
UniformForward = Callable[[Tensor, Tensor, UniformBatch], Tensor]
"""(token ids [rows], slots [rows], batch) -> logits [rows, vocab], for the rows of a rectangle; int64."""


class Recorder(Protocol):
    """Records what a function gives the device to do. RuntimeError if that cannot be recorded, or waits."""

    def record(self, run: Callable[[], None]) -> Replay:
        """The function is called, perhaps several times; its tensors stay where they are."""
        ...


def shape_for(layout: RaggedLayout, most_keys: int | None = None) -> UniformShape | None:
    """The rectangle that such a batch is padded to; None if it is better run as it is. most_keys: that all its
    sequences together may have."""
    rows = max(len(segment.tokens) for segment in layout.segments)
    if rows > LONGEST_ROWS or layout.num_logits == 0:
        return None
    longest = max(segment.context + len(segment.tokens) for segment in layout.segments)
    shape = UniformShape(
        sequences=_step_up(len(layout.segments), 8),
        rows=_step_up(rows, 4),
        blocks=_blocks(longest, layout.block_size),
    )
    if shape.sequences * shape.rows > MOST_ROWS:
        return None
    if most_keys is not None and shape.sequences * shape.blocks * layout.block_size > most_keys:
        return None
    return shape


class RecordedForward:
    """One model's recordings. forward: of a rectangle. vocab: columns of its logits. scratch_block: id of the block
    that padding may write. most_keys: as in shape_for."""

    def __init__(
        self,
        forward: UniformForward,
        recorder: Recorder,
        vocab: int,
        block_size: int,
        scratch_block: int,
        device: torch.device,
        most_keys: int | None = None,
    ) -> None:
        self._forward, self._recorder = forward, recorder
        self._block_size, self._most_keys = block_size, most_keys
        self._padding = Segment((0,), 0, (scratch_block,), 0)
        self._device = device
        self._logits = torch.empty(MOST_ROWS, vocab, dtype=torch.float32, device=device)
        self._recordings: OrderedDict[UniformShape, tuple[Tensor, Replay]] = OrderedDict()  # latest used last
        self._missed: Counter[UniformShape] = Counter()  # unrecorded runs, since one was last given up
        self._able = True
        self.records = 0
        """Recordings made so far, or tried: the forward that makes one takes several times its time."""

    @property
    def shapes(self) -> tuple[UniformShape, ...]:
        """That are recorded, the longest unused first."""
        return tuple(self._recordings)

    def forward(self, layout: RaggedLayout) -> Tensor | None:
        """As ModelRunner.forward; None if the batch should be run as it is. Running it twice does no harm: the same
        rows write the same KV."""
        shape = shape_for(layout, self._most_keys)
        if shape is None or not (shape in self._recordings or self._worthwhile(shape)):
            return None
        values, kept = self._values(layout, shape)
        there = to_device(values + kept, torch.int64, self._device)
        if shape in self._recordings:
            self._recordings.move_to_end(shape)
            self._recordings[shape][0].copy_(there[: len(values)])
        elif not self._record(shape, there[: len(values)].clone()):
            return None
        self._recordings[shape][1]()
        return self._logits.index_select(0, there[len(values) :])

    def _worthwhile(self, shape: UniformShape) -> bool:
        """Whether to record it now, giving up another recording if need be."""
        if not self._able or len(self._recordings) < MOST_GRAPHS:
            return self._able
        self._missed[shape] += 1
        if self._missed[shape] < PATIENCE:
            return False
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # it may still be running
        self._recordings.popitem(last=False)
        self._missed.clear()
        return True

    def _record(self, shape: UniformShape, inputs: Tensor) -> bool:
        """Whether that could be done."""
        self.records += 1
        cells = shape.sequences * shape.rows
        token_ids, slots, rest = inputs[:cells], inputs[cells : 2 * cells], inputs[2 * cells :]

        def run() -> None:
            batch = shape.batch(rest, self._block_size, shape.blocks * self._block_size)
            self._logits[:cells].copy_(self._forward(token_ids, slots, batch))

        try:
            replay = self._recorder.record(run)
        except RuntimeError as error:  # that memory is short is one too
            log.warning("forwards of this model that have not been recorded in CUDA graphs run without: %s", error)
            self._able = False
            return False
        self._recordings[shape] = (inputs, replay)
        return True

    def _values(self, layout: RaggedLayout, shape: UniformShape) -> tuple[list[int], list[int]]:
        """Token ids, slots, positions, ends and table of the rectangle; and which of its rows give the logits."""
        segments = [*layout.segments, *[self._padding] * (shape.sequences - len(layout.segments))]
        size, scratch = self._block_size, self._padding.blocks[0] * self._block_size
        token_ids: list[int] = []
        slots: list[int] = []
        kept: list[int] = []
        for segment in segments:
            count = len(segment.tokens)
            unused = shape.rows - count
            token_ids += (0,) * unused + segment.tokens
            slots += [scratch] * unused
            slots += [
                segment.blocks[p // size] * size + p % size for p in range(segment.context, segment.context + count)
            ]
            kept += range(len(token_ids) - segment.num_logits, len(token_ids))
        return token_ids + slots + shape.values(segments, size), kept


def _step_up(count: int, step: int) -> int:
    """5 -> 8 for steps of 4: a power of two up to the step, a multiple of it beyond."""
    return _power_of_two(count) if count <= step else -(-count // step) * step


def _blocks(keys: int, block_size: int) -> int:
    room = _LEAST_KEYS
    while room < keys:
        room *= _MORE_KEYS
    return -(-room // block_size)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
