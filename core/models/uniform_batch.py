"""UniformBatch: sequences with as many rows each, as a rectangle of tensors; how a ragged batch becomes one.

Segments with fewer rows than the rectangle is wide are padded in front, so that a segment's last row stands at the
right edge, as the kernels that align their causal mask to the bottom right want it. Worked example, block size 4,
a rectangle of 3 rows a sequence:

    segment  context  rows  blocks       positions   ends   table
    A        6        3     [2, 5, 9]    6 7 8       9      2 5 9
    B        4        1     [1, 3]       4 4 4       5      1 3 0

B's first two rows are padding. They stand where its first row stands and so see the same keys, its own. The 0 in
the table is never read: nobody reads behind `ends`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from core.layout import Segment


@dataclass(frozen=True, slots=True)
class UniformBatch:
    """int64 tensors of one device: positions [sequences, rows], ends [sequences] (context + rows, the keys there
    are), table [sequences, blocks]. num_keys: at least the largest of `ends`, known to the host."""

    positions: Tensor
    ends: Tensor
    table: Tensor
    block_size: int
    num_keys: int

    @property
    def num_rows(self) -> int:
        """Of each sequence."""
        return self.positions.shape[1]


@dataclass(frozen=True, slots=True)
class UniformShape:
    """How many sequences, rows of each and blocks of each a rectangle has."""

    sequences: int
    rows: int
    blocks: int

    @property
    def num_values(self) -> int:
        """Of positions, ends and table together."""
        return self.sequences * (self.rows + 1 + self.blocks)

    def values(self, segments: Sequence[Segment], block_size: int) -> list[int]:
        """Positions, ends and table of exactly `sequences` segments, one after the other, to be copied at once."""
        positions, ends, tables = [], [], []
        for segment in segments:
            count = len(segment.tokens)
            end = segment.context + count
            blocks = segment.blocks[: -(-end // block_size)]
            positions.append((*(segment.context,) * (self.rows - count), *range(segment.context, end)))
            ends.append(end)
            tables.append((*blocks, *(0,) * (self.blocks - len(blocks))))
        return [*chain(*positions), *ends, *chain(*tables)]

    def batch(self, values: Tensor, block_size: int, num_keys: int) -> UniformBatch:
        """The copied values [num_values] as views of them."""
        cells = self.sequences * self.rows
        positions, ends, table = (
            values[:cells],
            values[cells : cells + self.sequences],
            values[cells + self.sequences :],
        )
        return UniformBatch(
            positions.view(self.sequences, self.rows),
            ends,
            table.view(self.sequences, self.blocks),
            block_size,
            num_keys,
        )
