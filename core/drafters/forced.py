"""What grammars leave no choice of: drafts that cannot fail and cost no forward.

All grammars are asked side by side, since a mask takes some 50 us and a worker thread for each core makes them.
"""

from collections.abc import Iterable

from core.drafters.base import DraftJob, explore_behind
from core.grammar import explore
from core.sequence import Sequence

MOST_FORCED = 16
"""Tokens that are looked ahead to plan with."""


def force(jobs: list[DraftJob]) -> list[DraftJob]:
    """Let each job take what its grammar leaves no choice of; returns those that want more."""
    ended: set[int] = set()
    walking = [job for job in jobs if len(job.drafts) < job.limit]
    explore_behind([(job, []) for job in walking])
    while walking:
        forced = [(job, token) for job in walking if (token := _forced(job.sequence, job.drafts)) is not None]
        explore_behind([(job, [token]) for job, token in forced])
        walking = []
        for job, token in forced:
            if job.extend([token], [1.0] if job.min_reach > 0 else None):
                walking.append(job)
            else:
                ended.add(id(job))
    return [job for job in jobs if id(job) not in ended and len(job.drafts) < job.limit]


def look_ahead(sequences: Iterable[Sequence]) -> None:
    """Note how many tokens each sequence's grammar leaves no choice of next, for whoever plans the next round. The
    masks made for it are those that the round needs."""
    walking: list[tuple[Sequence, list[int]]] = []
    for sequence in sequences:
        sequence.forced = 0
        if sequence.grammar is not None and not sequence.finished:
            walking.append((sequence, []))
    while walking:
        explore((sequence.grammar, run) for sequence, run in walking if sequence.grammar is not None)
        walking = [(s, [*run, token]) for s, run in walking if (token := _forced(s, run)) is not None]
        for sequence, run in walking:
            sequence.forced = len(run)
        walking = [(sequence, run) for sequence, run in walking if len(run) < MOST_FORCED]


def _forced(sequence: Sequence, drafts: list[int]) -> int | None:
    return None if sequence.grammar is None else sequence.grammar.forced(drafts)
