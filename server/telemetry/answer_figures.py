"""AnswerFigures: the instruments that take one value an answer, when it has ended."""

from collections.abc import Mapping, Sequence

from core.provenance import FinishReason
from scheduler.events import FinishedEvent
from server.telemetry import attributes, catalogue
from server.telemetry.instruments import Instruments

Labels = Mapping[str, str]


class AnswerFigures:
    """What is recorded of whole answers (requests of HTTP) and of their sequences."""

    def __init__(self, instruments: Instruments) -> None:
        self._duration = instruments.histogram(catalogue.REQUEST_DURATION)
        self._first_token = instruments.histogram(catalogue.TIME_TO_FIRST_TOKEN)
        self._per_token = instruments.histogram(catalogue.TIME_PER_OUTPUT_TOKEN)
        self._length = instruments.histogram(catalogue.ACCEPTANCE_LENGTH)
        self._speedup = instruments.histogram(catalogue.ESTIMATED_SPEEDUP)
        self._off_seconds = instruments.counter(catalogue.OFF_SECONDS)
        self._round_seconds = instruments.counter(catalogue.ROUND_SECONDS)
        self._requests = instruments.counter(catalogue.REQUESTS)
        self._expected: set[tuple[str, str]] = set()  # verifiers and drafters
        self._prompt = instruments.counter(catalogue.PROMPT_TOKENS)
        self._cached = instruments.counter(catalogue.CACHE_HIT_TOKENS)

    def expect(self, verifier: str, drafter: str) -> None:
        """Sequences of these will end: count every way at 0, as a rate would not see a series that begins at 1."""
        if (verifier, drafter) not in self._expected:
            self._expected.add((verifier, drafter))
            for reason in FinishReason:
                labels = {"verifier": verifier, "drafter": drafter, "finish_reason": reason.value}
                self._requests.add(0, labels)

    def first_token(self, seconds: float, labels: Labels) -> None:
        self._first_token.record(seconds, labels)

    def sequence_ended(self, verifier: str, drafter: str, event: FinishedEvent) -> None:
        """A sequence has ended, whatever the end. Its prompt counts if it was read to its end."""
        labels = {"verifier": verifier, "drafter": drafter, "finish_reason": event.reason.value}
        self._requests.add(1, labels)
        if event.timings.time_to_first_token is not None or event.reason is FinishReason.LENGTH:
            self._prompt.add(event.prompt_tokens)
            self._cached.add(event.cached_prompt_tokens)

    def answer_ended(self, seconds: float, error: str | None, labels: Labels) -> None:
        """seconds: from the request's arrival. error: its type, if the answer failed."""
        self._duration.record(seconds, labels if error is None else {**labels, attributes.ERROR_TYPE: error})

    def answer_completed(self, events: Sequence[FinishedEvent], labels: Labels) -> None:
        """An answer that did not fail: what its tokens took behind the first of each sequence."""
        later = [event for event in events if event.completion_tokens > 1]
        tokens = sum(event.completion_tokens - 1 for event in later)
        if tokens:
            self._per_token.record(sum(_decoding(event) for event in later) / tokens, labels)

    def speculated(self, report: Mapping[str, object], events: Sequence[FinishedEvent]) -> None:
        """report: the answer's `speculation`."""
        verifier = {"verifier": str(report["verifier"])}
        length, speedup = report["mean_accepted_length"], report["estimated_speedup"]
        if isinstance(length, float):
            self._length.record(length, verifier)
        if isinstance(speedup, float):
            self._speedup.record(speedup, verifier)
            self._off_seconds.add(sum(event.counters.off_seconds for event in events), verifier)
            self._round_seconds.add(sum(event.counters.round_seconds for event in events), verifier)


def _decoding(event: FinishedEvent) -> float:
    """Seconds from its first token to its last."""
    return event.timings.total_seconds - (event.timings.time_to_first_token or 0.0)
