"""Roster: the jobs that are in the engine, which of them are to end after the current round, and the background one."""

import time
from collections.abc import Iterator

from core.sequence import SequenceState
from scheduler.job import Job


class Roster:
    """Belongs to the engine's event loop; its counts may be read from any thread.

    background: the one job that is nobody's, alone here but for a round that ends without it.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._ending: set[Job] = set()
        self._left_at = time.monotonic()  # when the last job went that was somebody's
        self.background: Job | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """In the order of arrival; it may change meanwhile."""
        return iter(list(self._jobs.values()))

    def __contains__(self, job: object) -> bool:
        return isinstance(job, Job) and self._jobs.get(job.request_id) is job

    def find(self, request_id: str) -> Job | None:
        return self._jobs.get(request_id)

    def enter(self, job: Job) -> None:
        self._jobs[job.request_id] = job
        if job.sequence.request.background:
            self.background = job

    def leave(self, job: Job, now: float) -> bool:
        """It is here no more; whether it was the background one."""
        self._ending.discard(job)
        self._jobs.pop(job.request_id, None)
        if job is self.background:
            self.background = None
            return True
        self._left_at = now
        return False

    def end_later(self, job: Job) -> None:
        """It runs, so only between rounds can it end."""
        self._ending.add(job)

    @property
    def ending(self) -> list[Job]:
        return list(self._ending)

    @property
    def owned(self) -> list[Job]:
        """Those that are somebody's."""
        return [job for job in self if job is not self.background]

    @property
    def background_waits(self) -> bool:
        job = self.background
        return job is not None and job.sequence.state is SequenceState.WAITING

    @property
    def idle_seconds(self) -> float:
        """How long nobody has been here, background work aside; 0.0 while somebody is."""
        return 0.0 if len(self._jobs) > (self.background is not None) else time.monotonic() - self._left_at
