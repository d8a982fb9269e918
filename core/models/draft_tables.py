"""DraftTables: the KV of a draft model with another vocabulary, whose positions are not the target's.

Each sequence has a table of blocks of its own for it, in a pool of its own. What is kept there is a cache and no
more: a sequence that finds no room takes the blocks of whoever has used theirs least recently, who then reads its text
again. So however little room there is, what is drafted stays the same, and nobody waits who is not made to wait for
the reading. Texts that begin alike share what one of them has read, as in any BlockPool.

KV is valid as long as the ids before it are the same, verified or not, so what a round drafted and what the last
word's tokens were before it grew are found again by comparing ids:

    settled    a b c d      KV valid for a b c, the first target_tokens of them
    beyond     d e f        ids behind those whose KV is there, too: the open word and drafts of last time
    wanted     d e g        d e are valid, g is fed
"""

from collections.abc import Container
from itertools import takewhile

from core.drafters.bridge import Reading
from core.models.block_hashes import chained_hashes
from core.models.block_pool import BlockPool
from core.models.holder import Holder
from core.sequence import GenerationRequest


class DraftTable:
    """One sequence's. A Holder: its tokens are the reading's settled ids, target_tokens those of them with valid KV,
    always one less than all at least, so that there is something to feed."""

    def __init__(self, request: GenerationRequest, reading: Reading) -> None:
        self.request = request
        self.reading = reading
        self.blocks: list[int] = []
        self.block_hashes: list[bytes] = []
        self.target_tokens = 0
        self.draft_tokens = 0  # of a draft model's draft model there is none
        self.beyond: list[int] = []

    @property
    def tokens(self) -> list[int]:
        return self.reading.settled

    @property
    def prompt_rows_owed(self) -> range:
        return range(0)

    @property
    def lacks_nothing(self) -> bool:
        """Whether all settled ids but the last, which every draft turn feeds, have valid KV."""
        return self.target_tokens >= len(self.tokens) - 1

    def lacking(self, behind: list[int]) -> tuple[int, list[int]]:
        """The first position without valid KV, or the last one of all, and the ids from there to the end of the settled
        ones and those `behind` them, which are not to be empty both. What was fed beyond and differs is forgotten."""
        wanted = self.reading.settled[self.target_tokens :] + behind
        agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, self.beyond, strict=False)))
        agreed = min(agreed, len(wanted) - 1)
        del self.beyond[agreed:]
        return self.target_tokens + agreed, wanted[agreed:]


class DraftTables:
    """All sequences'. pool: its blocks, none of which the target's pool knows."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self._tables: dict[Holder, DraftTable] = {}  # who used theirs least recently first

    @property
    def capacity(self) -> int:
        """Positions of one text that had them all."""
        return self.pool.num_blocks * self.pool.block_size

    def find(self, sequence: Holder) -> DraftTable | None:
        return self._tables.get(sequence)

    def open(self, sequence: Holder, reading: Reading) -> DraftTable:
        """A new table without blocks."""
        table = self._tables[sequence] = DraftTable(sequence.request, reading)
        return table

    def look_up(self, table: DraftTable) -> None:
        """Let a table have what others have read of the same text, where that goes on behind what it has; none that
        drafts already, whose open word lies behind."""
        held, size = len(table.block_hashes), self.pool.block_size
        if table.beyond or (held + 1) * size >= len(table.tokens):  # one id is always left to feed
            return
        parent = table.block_hashes[-1] if held else b""
        if self.pool.knows(next(chained_hashes(table.tokens, size, parent, held))):
            self.pool.release(table)
            self.pool.match_prefix(table)

    def make_room(self, sequence: Holder, num_positions: int, kept: Container[Holder]) -> bool:
        """Give the sequence's table blocks for so many positions, at most `capacity`, if need be those of others that
        are not `kept`; False if these do not suffice. Whoever loses theirs has draft_tokens 0 again."""
        table = self._tables[sequence] = self._tables.pop(sequence)
        while not self.pool.grow(table, num_positions):
            if (victim := self._victim(sequence, kept)) is None:
                return False
            self._empty(self._tables[victim])
            victim.draft_tokens = 0
        return True

    def settle(self, table: DraftTable) -> None:
        """Count what was fed of the settled ids as theirs, once and for all."""
        count = max(0, min(len(table.tokens) - 1 - table.target_tokens, len(table.beyond)))
        self.pool.commit_tokens(table, table.target_tokens + count, 0)
        del table.beyond[:count]

    def release(self, sequence: Holder) -> None:
        """Forget the sequence; nothing to do for one without a table."""
        if (table := self._tables.pop(sequence, None)) is not None:
            self._empty(table)

    def check_integrity(self) -> None:
        self.pool.check_integrity(self._tables.values())

    def _victim(self, sequence: Holder, kept: Container[Holder]) -> Holder | None:
        holding = (one for one, table in self._tables.items() if table.blocks and one is not sequence)
        return next((one for one in holding if one not in kept), None)

    def _empty(self, table: DraftTable) -> None:
        self.pool.release(table)
        table.beyond.clear()
