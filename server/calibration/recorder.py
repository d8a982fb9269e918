"""What rounds of strict speculation rejected, told apart by request."""

from collections import Counter, defaultdict

from core.correction_table import pair_key
from core.round import RoundResult
from core.sequence import GenerationRequest
from scheduler.events import FinishedEvent
from scheduler.observer import EngineObserver


class Recorder(EngineObserver):
    """Counts each round's first mismatch: under strict that is the one draft it corrects."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def take(self, request_id: str) -> Counter[int]:
        """Of a request that has finished: pair key -> how often. Once."""
        return self._counts.pop(request_id, Counter())

    def on_round(self, result: RoundResult, schedule_seconds: float) -> None:
        for item in result.items:
            if item.corrected is not None:
                self._counts[item.sequence.request.request_id][pair_key(*item.corrected)] += 1

    def on_first_token(self, request: GenerationRequest, seconds: float) -> None: ...

    def on_finish(self, request: GenerationRequest, event: FinishedEvent) -> None: ...
