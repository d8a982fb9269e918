"""Evidence: one block's facts, what a verifier decides on. Gathered by core/evidence.py."""

import math
from dataclasses import dataclass

from core.candidates import Candidates
from core.logprobs import RowLogprobs
from core.provenance import Verdict


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sequence's block of K drafts, on the host. Row j predicts the token that draft[j] claims.

    draft [K]; choice [K + 1]: what the target takes, the last one being the bonus; native [K]: whether
    they agree. Of the mismatches that a loose verifier may loosen: entropy [K], in nats (fly and hybrid; the
    sum over the 3 likeliest tokens of -p ln p, not renormalised, or with `full` H / ln V; typical: of all tokens);
    probability [K]: the draft's (typical); gap [K]: the draft's logit less the row's best, before temperature;
    protected [K]: may not be loosened. In all other rows entropy, probability and gap are NaN and protected is True:
    what was not judged is not loosened.
    logprobs [K + 1]: only if the request asks. learned: the one mismatch, if any, that was judged for a
    learning memory's sake alone, since it is certain to be rejected. candidates [K + 1]: only for token recycling.
    """

    draft: list[int]
    choice: list[int]
    native: list[bool]
    entropy: list[float]
    probability: list[float]
    gap: list[float]
    protected: list[bool]
    logprobs: list[RowLogprobs] | None
    learned: int | None = None
    candidates: list[Candidates] | None = None

    def verdict(self, j: int) -> Verdict:
        """Row j as it is told to the client; entropy and gap are None where it could not have been loosened, and where
        they are no finite numbers (masked)."""
        if j == len(self.draft):
            return Verdict(None, self.choice[j], None, None)
        if j == self.learned:
            return Verdict(self.draft[j], self.choice[j], None, None)
        entropy, gap = (value if math.isfinite(value) else None for value in (self.entropy[j], self.gap[j]))
        return Verdict(self.draft[j], self.choice[j], entropy, gap)
