"""The waiting room: who may come in, who is next, and an honest refusal for the rest.

Order: by rank, that is by priority (a lower value goes first) and, inside a class, by arrival, strictly:
nobody is overtaken because a smaller request would fit first. Age counts as well: AGE_SECONDS of
waiting outweigh one step of priority, so a steady stream of urgent requests cannot starve the others.
A preempted sequence keeps its rank; as it was admitted before anyone of its class who still waits, it
stands in front of its class.
"""

import heapq
import math
from collections import deque

from scheduler.job import Job

LEAST_RETRY, MOST_RETRY, UNKNOWN_RETRY = 1.0, 60.0, 5.0  # seconds
RECENT_FINISHES = 32


class AdmissionError(Exception):
    """A request the engine does not take; the message may be shown to the client."""


class QueueFull(AdmissionError):  # noqa: N818 - a refusal, not an error
    """Too many wait already. retry_after: seconds until a place is likely to be free."""

    def __init__(self, waiting: int, retry_after: float) -> None:
        super().__init__(f"the queue is full ({waiting} requests are waiting); retry in {retry_after:.0f} s")
        self.retry_after = retry_after


class ContextTooLong(AdmissionError):  # noqa: N818
    """The prompt leaves no room for an answer. longest: tokens of the longest prompt that would."""

    def __init__(self, prompt_tokens: int, longest: int) -> None:
        super().__init__(f"the prompt has {prompt_tokens} tokens; the longest that can be answered here has {longest}")
        self.prompt_tokens = prompt_tokens
        self.longest = longest


class EngineStopped(AdmissionError):  # noqa: N818
    """The engine is not running: not started, draining or stopped."""

    def __init__(self) -> None:
        super().__init__("the engine is not accepting requests: it is starting or shutting down")


class EngineBusy(AdmissionError):  # noqa: N818
    """Somebody is in the engine; background work is to come again when nobody is."""

    def __init__(self) -> None:
        super().__init__("the engine is not idle")


class WaitingRoom:
    """Jobs without blocks, most urgent first. Bounded by `places`, which only newcomers respect."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], Job]] = []
        self._gone: set[Job] = set()
        self._finishes: deque[float] = deque(maxlen=RECENT_FINISHES)

    def __len__(self) -> int:
        return len(self._heap) - len(self._gone)

    def enter(self, job: Job, places: int, now: float) -> None:
        """Take a newcomer if fewer than `places` jobs wait; QueueFull otherwise. now: monotonic seconds."""
        if len(self) >= places:
            raise QueueFull(len(self), self.retry_after(now))
        self.put(job)

    def put(self, job: Job) -> None:
        """Take a job unconditionally: one that was admitted before and preempted."""
        heapq.heappush(self._heap, (job.rank, job))

    def first(self) -> Job | None:
        """The most urgent job, left in place."""
        while self._heap and self._heap[0][1] in self._gone:
            self._gone.discard(heapq.heappop(self._heap)[1])
        return self._heap[0][1] if self._heap else None

    def take_first(self) -> Job:
        """Remove and return the most urgent job. IndexError if nobody waits."""
        if self.first() is None:
            raise IndexError("nobody is waiting")
        return heapq.heappop(self._heap)[1]

    def remove(self, job: Job) -> None:
        """Let a waiting job go; its place in the heap is cleared when it comes to the top."""
        self._gone.add(job)
        if len(self._gone) > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[1] not in self._gone]
            self._gone.clear()
            heapq.heapify(self._heap)

    def note_finish(self, now: float) -> None:
        """A sequence has finished, which frees a place."""
        self._finishes.append(now)

    def retry_after(self, now: float) -> float:
        """Seconds until the next place is free, from the rate of the last finishes; whole and within bounds."""
        if not self._finishes:
            return UNKNOWN_RETRY
        seconds = max(now - self._finishes[0], 0.0) / len(self._finishes)
        return float(math.ceil(min(max(seconds, LEAST_RETRY), MOST_RETRY)))
