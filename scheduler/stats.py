"""EngineStats: the engine's gauges and totals at one moment, and the running totals behind it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from core.models.block_pool import BlockPool
from core.provenance import FinishReason


@dataclass(frozen=True, slots=True)
class Blocks:
    """The pool at one moment. used: referenced by running sequences. cached: registered in the prefix
    cache, referenced or not. free: allocatable now, evictable ones included; used + free = total. evictable: cached
    and not referenced."""

    used: int
    cached: int
    free: int
    evictable: int
    total: int

    @classmethod
    def of(cls, pool: BlockPool) -> "Blocks":
        return cls(
            used=pool.num_used,
            cached=pool.num_cached,
            free=pool.num_free,
            evictable=pool.num_evictable,
            total=pool.num_blocks,
        )


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges: running, waiting (preempted ones included) and blocks, as in Blocks. The rest are totals.

    refused: submissions answered with QueueFull. failed_rounds: rounds that raised. finished: sequences by reason.
    Background work is in none of them but the blocks. What rounds delivered is summed up by whoever observes them.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    blocks_evictable: int
    blocks_total: int
    rounds: int
    failed_rounds: int
    preemptions: int
    refused: int
    finished: Mapping[FinishReason, int]


@dataclass(slots=True)
class Totals:
    """What EngineStats sums up since the start; the engine task alone writes it."""

    rounds: int = 0
    failed_rounds: int = 0
    preemptions: int = 0
    refused: int = 0
    finished: Counter[FinishReason] = field(default_factory=Counter)

    def snapshot(self, running: int, waiting: int, blocks: Blocks) -> EngineStats:
        return EngineStats(
            running=running,
            waiting=waiting,
            blocks_used=blocks.used,
            blocks_cached=blocks.cached,
            blocks_free=blocks.free,
            blocks_evictable=blocks.evictable,
            blocks_total=blocks.total,
            rounds=self.rounds,
            failed_rounds=self.failed_rounds,
            preemptions=self.preemptions,
            refused=self.refused,
            finished=MappingProxyType(dict(self.finished)),
        )
