"""EngineStats: the engine's gauges and totals at one moment, and the running totals behind it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from core.models.block_pool import BlockPool
from core.provenance import FinishReason
from core.round import RoundResult


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

    prompt_tokens and prefix_cache_hit_tokens count a sequence when it is first admitted, so their ratio
    is the hit rate. refused: submissions answered with QueueFull. failed_rounds: rounds that raised.
    accepted_tokens: drafts delivered, loosened ones included. finished: sequences by reason.
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
    prompt_tokens: int
    prefix_cache_hit_tokens: int
    generated_tokens: int
    draft_tokens: int
    accepted_tokens: int
    finished: Mapping[FinishReason, int]


@dataclass(slots=True)
class Totals:
    """What EngineStats sums up since the start; the engine task alone writes it."""

    rounds: int = 0
    failed_rounds: int = 0
    preemptions: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    prefix_cache_hit_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    finished: Counter[FinishReason] = field(default_factory=Counter)

    def count_round(self, result: RoundResult) -> None:
        self.rounds += 1
        for item in result.items:
            self.generated_tokens += len(item.tokens)
            self.draft_tokens += item.drafted
            self.accepted_tokens += item.accepted

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
            prompt_tokens=self.prompt_tokens,
            prefix_cache_hit_tokens=self.prefix_cache_hit_tokens,
            generated_tokens=self.generated_tokens,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            finished=MappingProxyType(dict(self.finished)),
        )
