"""CSD's correction memory: which draft tokens the target keeps rejecting, and for what.

One memory belongs to one pair of models. It holds a table per proposer, because what a draft model gets
wrong differs from what text lookup does, and that from what the other drafters do. It is calibrated
offline: plain strict speculation over prompts, the first mismatch of every round recorded, ungated
(`ItemResult.corrected`). While serving it is static, unless it is a LearningMemory (correction_learning.py): a
memory that learns makes answers depend on other people's traffic.

What is recorded during a round waits in a buffer until `merge_round`. So every sequence of a round sees
the same memory, and the order in which they are verified changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from core.correction_file import MemoryContents, MemoryFileError, read_memory, write_memory
from core.correction_origin import MemoryOrigin
from core.correction_table import MemorySnapshot, pair_key
from core.drafters.base import DRAFTERS

__all__ = ["DEFAULT_CAP", "PROPOSERS", "CorrectionMemory", "MemoryFileError", "MemorySnapshot", "proposer_of"]

PROPOSERS = ("model", "prompt_lookup", "token_recycling", "datastore")
DEFAULT_CAP = 4_000_000  # pairs per proposer; 64 MB

_EMPTY = MemorySnapshot()


def proposer_of(drafter: str) -> str:
    """Which table a drafter's tokens belong to: multilevel drafts are the draft model's own choices."""
    proposer = "model" if drafter == "multilevel" else drafter
    if proposer not in PROPOSERS:
        raise ValueError(f"unknown drafter {drafter!r}; known: multilevel, {', '.join(PROPOSERS)}")
    return proposer


class CorrectionMemory:
    """The tables of one (target, draft) pair.

    target, draft: fingerprints of the models; draft is None without a draft model. created: UTC, ISO
    8601; now if not given. cap: most pairs per proposer, beyond which the least frequent leave; while
    recording, up to RECENT_LIMIT more are held between two trims. A file never holds more than cap.
    origin: what the tables were calibrated on. learns: whether rounds are to tell it what they see.
    """

    learns = False

    def __init__(
        self,
        target: str = "",
        draft: str | None = None,
        *,
        cap: int = DEFAULT_CAP,
        created: str | None = None,
        tables: Mapping[str, MemorySnapshot] | None = None,
        origin: MemoryOrigin | None = None,
    ) -> None:
        if cap < 1:
            raise ValueError(f"cap must be at least 1, got {cap}")
        self.target = target
        self.draft = draft
        self.cap = cap
        self.created = created or datetime.now(UTC).isoformat(timespec="seconds")
        self.origin = origin or MemoryOrigin()
        self._tables = dict.fromkeys(PROPOSERS, _EMPTY)
        for proposer, table in (tables or {}).items():
            self._tables[proposer_of(proposer)] = table if table.keys.size <= cap else table.fold(cap)
        self._pairs: dict[str, Counter[int]] = {proposer: Counter() for proposer in PROPOSERS}
        self._samples: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def snapshot(self, drafter: str) -> MemorySnapshot:
        """The frozen table behind a drafter's tokens; empty for "none", since what a grammar forces is never loosened.
        Costs nothing; ValueError if unknown."""
        return _EMPTY if drafter == "none" else self._tables[proposer_of(drafter)]

    @property
    def drafters(self) -> frozenset[str]:
        """Those whose drafts it holds pairs of, or may come to hold."""
        return frozenset(name for name in DRAFTERS if self.learns or self.snapshot(name).num_pairs)

    @property
    def tables(self) -> Mapping[str, MemorySnapshot]:
        """Every proposer's table."""
        return dict(self._tables)

    def record(self, drafter: str, draft_token: int, target_token: int) -> None:
        """Buffer one occurrence of a pair. ValueError for an unknown drafter or ids outside [0, 2^31)."""
        self._pairs[proposer_of(drafter)][pair_key(draft_token, target_token)] += 1

    def learn(self, proposer: str, pairs: Iterable[tuple[int, int]]) -> None:
        """Not here: a static memory learns nothing, and rounds do not ask it to."""
        raise NotImplementedError

    def observe(self, drafter: str, samples: int = 0, tokens: int = 0) -> None:
        """Buffer how much text lies behind the pairs: finished prompts, delivered tokens."""
        proposer = proposer_of(drafter)
        self._samples[proposer] += samples
        self._tokens[proposer] += tokens

    def merge_round(self) -> None:
        """Add what was buffered to the tables; call between rounds. Snapshots taken earlier keep theirs."""
        for proposer in PROPOSERS:
            pairs, samples, tokens = self._pairs[proposer], self._samples[proposer], self._tokens[proposer]
            if pairs or samples or tokens:
                self._tables[proposer] = self._tables[proposer].add(pairs, samples, tokens, self.cap)
                pairs.clear()
        self._samples.clear()
        self._tokens.clear()

    def merge(self, other: "CorrectionMemory") -> None:
        """Add another memory's tables, buffers of both included. MemoryFileError if it is of other models."""
        self.merge_round()
        other.merge_round()
        other.check_models(self.target, self.draft)
        if self.draft is None and other.has_draft_pairs:
            raise MemoryFileError(f"this correction memory has no draft model, the other is of draft {other.draft!r}")
        for proposer in PROPOSERS:
            self._tables[proposer] = self._tables[proposer].merge(other._tables[proposer], self.cap)
        self.origin = self.origin.union(other.origin)

    def pruned(self, cap: int | None, least: int) -> "CorrectionMemory":
        """The same with at most `cap` pairs a table, and none that occurs less than `least` times."""
        tables = {proposer: table.fold(cap).at_least(least) for proposer, table in self._tables.items()}
        return CorrectionMemory(
            self.target, self.draft, cap=self.cap, created=self.created, tables=tables, origin=self.origin
        )

    def check_models(self, target: str, draft: str | None) -> None:
        """MemoryFileError unless this memory fits the models with these fingerprints.

        Without a draft model only prompt lookup's table is ever asked, so another draft does not matter
        then; nor does it for a memory whose draft table is empty.
        """
        if self.target != target:
            raise MemoryFileError(f"the correction memory is of target {self.target!r}, not {target!r}")
        if draft is not None and draft != self.draft and self.has_draft_pairs:
            raise MemoryFileError(f"the correction memory is of draft {self.draft!r}, not {draft!r}")

    @property
    def has_draft_pairs(self) -> bool:
        """Whether the draft model's table holds anything."""
        return self._tables["model"].num_pairs > 0

    def save(self, path: Path) -> None:
        """Write to one file, replacing it atomically; buffers are merged first. OSError if that fails."""
        self.merge_round()
        # Without the empty ones: programs that do not know their proposers read the rest.
        tables = {
            proposer: table.fold(self.cap)
            for proposer, table in self._tables.items()
            if table.num_pairs or table.calibrated_samples or table.calibrated_tokens
        }
        write_memory(path, MemoryContents(self.target, self.draft, self.created, tables, self.origin))

    @classmethod
    def load(cls, path: Path, *, cap: int = DEFAULT_CAP) -> "CorrectionMemory":
        """Read a file that `save` wrote. MemoryFileError if it is missing, damaged or something else."""
        contents = read_memory(path)
        unknown = set(contents.tables) - set(PROPOSERS)
        if unknown:
            raise MemoryFileError(f"{path} holds tables of unknown proposers: {', '.join(sorted(unknown))}")
        return cls(
            contents.target,
            contents.draft,
            cap=cap,
            created=contents.created,
            tables=contents.tables,
            origin=contents.origin,
        )
