"""Evidence: one block's facts, what a verifier decides on. Gathered by core/evidence.py."""

from dataclasses import dataclass

from core.logprobs import RowLogprobs


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sequence's block of K drafts, on the host. Row j predicts the token that draft[j] claims.

    draft [K]; choice [K + 1]: what the target takes, the last one being the bonus; native [K]: whether
    they agree. Of the mismatches that a loose verifier may loosen: entropy [K], in nats (fly and hybrid; the
    sum over the 3 likeliest tokens of -p ln p, not renormalised, or with `full` H / ln V); gap [K]:
    the draft's logit less the row's best, before temperature; protected [K]: may not be loosened. In
    all other rows entropy and gap are NaN and protected is True: what was not judged is not loosened.
    logprobs [K + 1]: only if the request asks.
    """

    draft: list[int]
    choice: list[int]
    native: list[bool]
    entropy: list[float]
    gap: list[float]
    protected: list[bool]
    logprobs: list[RowLogprobs] | None
