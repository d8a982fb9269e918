"""RaggedLayout: which rows of a round's flat batch belong to whom.

A forward runs T rows of many sequences side by side, without padding. Worked example with block
size 4, three segments:

    segment  context  tokens          blocks    rows   positions   logit rows
    A        0        a0 a1 a2        [7]       0..2   0 1 2       none (a prefill chunk, more to come)
    B        6        b6 x y          [2, 5, 9] 3..5   6 7 8       3 4 5 (two drafts and the bonus row)
    C        4        c4 c5           [1, 3]    6..7   4 5         7 (the end of a prefill, first token)

    query_starts = (0, 3, 6, 8), T = 8; segment B's row 1 attends to positions 0..7 of blocks 2, 5, 9.
    logit_rows = (3, 4, 5, 7): the forward returns four rows of logits, in that order.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """One sequence's rows: tokens to feed after `context` positions whose KV is valid.

    blocks: the sequence's block table, long enough for context + len(tokens) positions.
    num_logits: how many of its last rows need logits, 0 for a prefill chunk with more to come.
    """

    tokens: tuple[int, ...]
    context: int
    blocks: tuple[int, ...]
    num_logits: int


@dataclass(frozen=True, slots=True)
class RaggedLayout:
    """The flat batch of one forward; validates itself. All ids and positions are plain ints."""

    segments: tuple[Segment, ...]
    block_size: int
    query_starts: tuple[int, ...]
    logit_starts: tuple[int, ...]

    @classmethod
    def build(cls, segments: Iterable[Segment], block_size: int) -> "RaggedLayout":
        """Lay the segments out in order. ValueError if a segment is empty, asks for more logits than
        it has rows, or has too few blocks."""
        segments = tuple(segments)
        query_starts, logit_starts = [0], [0]
        for index, segment in enumerate(segments):
            rows = len(segment.tokens)
            if rows == 0:
                raise ValueError(f"segment {index} has no rows")
            if not 0 <= segment.num_logits <= rows:
                raise ValueError(f"segment {index} wants {segment.num_logits} logits of {rows} rows")
            if segment.context + rows > len(segment.blocks) * block_size:
                raise ValueError(
                    f"segment {index} needs {segment.context + rows} positions, "
                    f"has {len(segment.blocks)} blocks of {block_size}"
                )
            query_starts.append(query_starts[-1] + rows)
            logit_starts.append(logit_starts[-1] + segment.num_logits)
        if not segments:
            raise ValueError("a layout needs at least one segment")
        return cls(segments, block_size, tuple(query_starts), tuple(logit_starts))

    @property
    def num_rows(self) -> int:
        return self.query_starts[-1]

    @property
    def num_logits(self) -> int:
        return self.logit_starts[-1]

    def token_ids(self) -> list[int]:
        return [token for segment in self.segments for token in segment.tokens]

    def positions(self) -> list[int]:
        return [p for s in self.segments for p in range(s.context, s.context + len(s.tokens))]

    def logit_rows(self) -> list[int]:
        """Flat row indices that need logits, ascending."""
        return [
            row
            for segment, end in zip(self.segments, self.query_starts[1:], strict=True)
            for row in range(end - segment.num_logits, end)
        ]

    def slots(self) -> list[int]:
        """Where each row's KV goes: block id * block_size + offset."""
        size = self.block_size
        return [
            s.blocks[p // size] * size + p % size
            for s in self.segments
            for p in range(s.context, s.context + len(s.tokens))
        ]
