"""SplitPool: the target's blocks, where the draft model's KV lies in tables of its own (draft_tables.py)."""

from collections.abc import Iterable

from core.models.block_pool import BlockPool
from core.models.draft_tables import DraftTables
from core.models.holder import Holder


class SplitPool(BlockPool):
    """Whoever gives its blocks back gives those of its table back, too. A sequence's draft_tokens then count tokens of
    the target's that the draft model has read, of which nothing lies in the sequence's own blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.tables = DraftTables(num_blocks, block_size)

    def release(self, sequence: Holder) -> None:
        super().release(sequence)
        self.tables.release(sequence)

    def check_integrity(self, sequences: Iterable[Holder]) -> None:
        super().check_integrity(sequences)
        self.tables.check_integrity()

    def _draft_end(self, sequence: Holder) -> int:
        return 0
