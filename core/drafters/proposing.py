"""The loop of all drafters that cost no forward: propose, and let grammars have their say."""

from collections.abc import Callable

from core.drafters.base import DraftJob, explore_behind, legal_part
from core.drafters.forced import force

Propose = Callable[[list[tuple[DraftJob, int]]], list[list[int]]]
"""What may follow each job's drafts, at most so many tokens, all of them legal."""


def keep_legal(guesses: list[tuple[DraftJob, list[int]]]) -> list[list[int]]:
    """Each guess up to the first token that its job's grammar forbids; all grammars are asked side by side."""
    explore_behind((job, found) for job, found in guesses if found)
    return [
        found if (grammar := job.sequence.grammar) is None or not found else legal_part(grammar, job.drafts, found)
        for job, found in guesses
    ]


def draft_freely(jobs: list[DraftJob], propose: Propose) -> None:
    """Draft what is proposed, and what a grammar forces before, between and behind."""
    while jobs := force(jobs):
        found = propose([(job, job.limit - len(job.drafts)) for job in jobs])
        going_on = [bool(tokens) and job.extend(tokens) for job, tokens in zip(jobs, found, strict=True)]
        # Only behind what a grammar forces may more be found than was found here.
        jobs = [job for job, more in zip(jobs, going_on, strict=True) if more and job.sequence.grammar is not None]
