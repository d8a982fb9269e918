"""DraftOptions: what could draft for a job now, how likely its drafts are right, and what it would cost to begin."""

from collections.abc import Collection

from core.drafters.base import FREE_DRAFTERS, LOOKUP_DRAFTERS
from core.drafters.datastore import find
from core.drafters.model import DraftReach, drafts_with_model, model_draft_limit
from core.drafters.prompt_lookup import peek
from core.drafters.token_recycling import peek_recycled
from core.forward_costs import ForwardCosts
from core.ngram_index import LookupMatch
from core.sequence import Sequence
from core.token_store import TokenStore
from scheduler.draft_option import Option
from scheduler.drafting import usual_loosening
from scheduler.job import Job

USUAL_ANSWER = 128  # tokens that an answer has at first, for all that is known: max_tokens is often far more
USUAL_ROUND = 4  # tokens of a round with drafts
_LOOKUP = frozenset(LOOKUP_DRAFTERS)
_NOT_FOUND = LookupMatch([], 0)


class DraftOptions:
    """One per engine, asked between rounds only."""

    def __init__(
        self,
        reach: DraftReach,
        max_ngram: int,
        max_context: int,
        store: TokenStore | None = None,
        calibrated: Collection[str] = (),
    ) -> None:
        """reach: of the draft model. max_ngram: longest suffix that lookup looks for. max_context: positions of one
        sequence. store: the datastore drafter's. calibrated: drafters whose tokens the correction memory knows."""
        self._reach, self._max_ngram, self._max_context, self._store = reach, max_ngram, max_context, store
        self._calibrated = frozenset(calibrated)

    def loose_cap(self, job: Job) -> int:
        """Drafts that fit the context: a fact about the sequence alone."""
        return min(job.sequence.request.num_draft_tokens, self._max_context - len(job.sequence.tokens))

    def strict_cap(self, job: Job) -> int:
        """Drafts beyond max_tokens would be waste; the bonus row gives one token."""
        sequence = job.sequence
        return max(0, min(self.loose_cap(job), sequence.request.max_tokens - sequence.output_len - 1))

    def of(self, job: Job, cap: int, costs: ForwardCosts | None) -> tuple[list[Option], int]:
        """Those for up to `cap` drafts, and how long a suffix lookup found, or what stands for it (Outcome.match).
        costs: None leaves out what the draft model has yet to read, which is no fact about the sequence alone."""
        sequence, known = job.sequence, job.drafting.acceptance
        options: list[Option] = []
        if cap < 1:
            return options, 0
        if forced := min(cap, sequence.forced):
            options.append(Option("none", 1.0, 1.0, forced))
        found = self._peek(sequence, job.drafters, cap)
        for drafter in job.drafters:
            if drafter in FREE_DRAFTERS:
                if found.length:
                    first, later = known.chances(drafter, found.length)
                    loosening = self._loosening(job, drafter, later)
                    options.append(Option(drafter, first, later, len(found.tokens), loosening=loosening))
            elif drafts_with_model(sequence, self._reach):
                most = model_draft_limit(sequence, cap, self._reach)
                per_turn = known.per_turn(found.length) if drafter == "multilevel" else 1.0
                backlog = 0.0 if costs is None else _backlog(sequence, costs)
                lag = backlog / _rounds_left(sequence) if backlog else 0.0
                first, later = known.chances(drafter, 0)
                loosening = self._loosening(job, drafter, later)
                options.append(Option(drafter, first, later, most, per_turn, lag, backlog, loosening))
        return options, found.length

    def free(self, job: Job, cap: int) -> tuple[Option, int] | None:
        """What the job's drafter that costs no forward would propose now, as `of` has it."""
        drafter = next((name for name in job.drafters if name in FREE_DRAFTERS), None)
        if drafter is None:
            return None
        found = self._peek(job.sequence, job.drafters, cap)
        if not found.length:
            return None
        return Option(drafter, *job.drafting.acceptance.chances(drafter, found.length), len(found.tokens)), found.length

    def model_cap(self, job: Job, cap: int) -> int:
        """How many of `cap` drafts the draft model could make for the job now; 0 if it cannot draft for it."""
        if not drafts_with_model(job.sequence, self._reach):
            return 0
        return model_draft_limit(job.sequence, cap, self._reach)

    def _loosening(self, job: Job, drafter: str, later: float) -> float:
        verifier = job.sequence.request.verifier
        if not job.loose or (verifier.type == "csd" and drafter not in self._calibrated):
            return 0.0
        return job.drafting.acceptance.loosening(usual_loosening(verifier, later))

    def _peek(self, sequence: Sequence, drafters: Collection[str], cap: int) -> LookupMatch:
        """What the one of the drafters that costs no forward would propose. There is one at most (validation.py)."""
        if not _LOOKUP.isdisjoint(drafters):
            return peek(sequence, cap, self._max_ngram)
        if "token_recycling" in drafters:
            return peek_recycled(sequence, cap)
        if self._store is not None and "datastore" in drafters:
            return find(self._store, sequence, [], cap)
        return _NOT_FOUND


def _backlog(sequence: Sequence, costs: ForwardCosts) -> float:
    """Seconds in which the draft model reads what it has not read yet."""
    behind = len(sequence.tokens) - sequence.draft_tokens
    if costs.draft is None or behind <= 2:  # no more than a round with drafts leaves
        return 0.0
    return max(0.0, costs.draft.at(behind) - costs.draft.at(1))


def _rounds_left(sequence: Sequence) -> float:
    """With drafts, in all likelihood: it is they that reading the text is for. What has gone on for long goes on for as
    long again."""
    tokens = min(sequence.request.max_tokens - sequence.output_len, max(USUAL_ANSWER, sequence.output_len))
    return max(1.0, tokens / USUAL_ROUND)
