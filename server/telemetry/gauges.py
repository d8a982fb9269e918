"""Gauges: the engine's state at the moment somebody collects, whatever thread that is."""

from collections.abc import Callable, Iterable, Mapping

from scheduler.stats import EngineStats
from server.telemetry import catalogue
from server.telemetry.instruments import Instruments

StatsSource = Callable[[], EngineStats | None]  # None while there is no engine
PairsSource = Callable[[], Mapping[str, int]]  # of the correction memory, by proposer
_Values = Iterable[tuple[float, Mapping[str, str]]]


class Gauges:
    """Gauges, and counters of what the engine sums up itself; without an engine there are none."""

    def __init__(self, instruments: Instruments) -> None:
        self._stats: StatsSource = lambda: None
        self._pairs: PairsSource = dict
        for metric, field in (
            (catalogue.RUNNING, "running"),
            (catalogue.WAITING, "waiting"),
            (catalogue.KV_BLOCKS_LIMIT, "blocks_total"),
        ):
            instruments.gauge(metric, self._reader(field))
        instruments.gauge(catalogue.KV_BLOCKS, self._blocks)
        instruments.gauge(catalogue.MEMORY_PAIRS, self._memory_pairs)
        for metric, field in (
            (catalogue.REFUSED, "refused"),
            (catalogue.PREEMPTIONS, "preemptions"),
            (catalogue.FAILED_ROUNDS, "failed_rounds"),
        ):
            instruments.observed_counter(metric, self._reader(field))

    def follow(self, stats: StatsSource, memory_pairs: PairsSource) -> None:
        self._stats, self._pairs = stats, memory_pairs

    def _reader(self, field: str) -> Callable[[], _Values]:
        def read() -> _Values:
            stats = self._stats()
            return [] if stats is None else [(getattr(stats, field), {})]

        return read

    def _blocks(self) -> _Values:
        """Three states that sum to the limit: held by sequences, held by nobody but worth keeping, empty."""
        stats = self._stats()
        if stats is None:
            return []
        evictable = stats.blocks_evictable
        by_state = {"used": stats.blocks_used, "cached": evictable, "free": stats.blocks_free - evictable}
        return [(count, {"state": state}) for state, count in by_state.items()]

    def _memory_pairs(self) -> _Values:
        return [(count, {"proposer": proposer}) for proposer, count in self._pairs().items()]
