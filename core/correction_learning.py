"""A correction memory that goes on counting while it serves, and shares its counts with other servers.

    rounds             learn -> merge_round: visible from the next round on, and unsaved
    now and then       drain: the unsaved are added to a store that others add to -> offer: the store's sums

What is visible is always the sums that were offered last and what this server has counted since they were drained.
The rounds' thread and the one that talks to the store meet in one lock, held for microseconds; sums that are offered
during a round take effect behind it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from threading import Lock

from core.correction_memory import PROPOSERS, CorrectionMemory
from core.correction_table import MemorySnapshot


class LearningMemory(CorrectionMemory):
    """CSD's dynamic counting: rescues that were delivered and the first rejection of a block, where the logits nearly
    tie (`csd.learned_pairs`). Built as any CorrectionMemory; cap bounds the table."""

    learns = True

    _unsaved: dict[str, Counter[int]]
    _offered: Mapping[str, MemorySnapshot] | None

    def __init__(self, memory: CorrectionMemory, cap: int) -> None:
        """memory: what it begins with."""
        tables = {proposer: memory.snapshot(proposer) for proposer in PROPOSERS}
        super().__init__(
            memory.target, memory.draft, cap=cap, created=memory.created, tables=tables, origin=memory.origin
        )
        self._lock = Lock()
        self._unsaved = {proposer: Counter() for proposer in PROPOSERS}
        self._offered = None

    def learn(self, proposer: str, pairs: Iterable[tuple[int, int]]) -> None:
        """Buffer what a block showed; during a round, in its thread. ValueError for an unknown proposer."""
        for draft_token, target_token in pairs:
            self.record(proposer, draft_token, target_token)

    def merge_round(self) -> None:
        """Make visible what was learned, and the sums that were offered; between rounds."""
        with self._lock:
            if self._offered is not None:
                for proposer, table in self._offered.items():
                    self._tables[proposer] = table.add(self._unsaved[proposer], 0, 0, self.cap)
                self._offered = None
            for proposer in PROPOSERS:
                self._unsaved[proposer].update(self._pairs[proposer])
            super().merge_round()

    def drain(self) -> dict[str, dict[int, int]]:
        """What nobody else knows yet, per proposer as key -> count, now the caller's to save before it offers anything;
        nothing while sums wait to take effect, which would not hold it."""
        with self._lock:
            if self._offered is not None:
                return {}
            drained = {proposer: dict(pairs) for proposer, pairs in self._unsaved.items() if pairs}
            self._unsaved = {proposer: Counter() for proposer in PROPOSERS}
            return drained

    def offer(self, tables: Mapping[str, MemorySnapshot]) -> None:
        """The store's sums, with everything in them that was ever drained."""
        with self._lock:
            self._offered = dict(tables)
