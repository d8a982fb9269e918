"""GET /v1/audit and DELETE /v1/audit: what the shadow audit has found, and to forget it.

The shapes are declared here, once, for the answer and the OpenAPI document.
"""

import logging
from typing import Any, Self

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from server.audit.auditor import Auditor
from server.audit.figures import SetFigures
from server.audit.reconverge import MOST_SHIFT, RUN
from server.errors import ApiError

log = logging.getLogger(__name__)


class AuditRule(BaseModel):
    """How it is judged. run_tokens equal tokens must begin within reconverge_tokens of the loosened one, at most
    max_shift apart. floor: null for no guard."""

    sample_rate: float
    reconverge_tokens: int
    run_tokens: int
    max_shift: int
    max_positions: int
    floor: float | None
    min_tokens: int


class AuditQueue(BaseModel):
    """waiting: answers to be replayed, at most `places`; replaying: one more is in hand. dropped: they gave way to
    newer ones. skipped: by reason. failed: the engine failed while it replayed them. interruptions: pieces of work that
    ended because somebody came."""

    waiting: int
    replaying: bool
    places: int
    dropped: int
    skipped: dict[str, int] = Field(
        description="answers: sampled, penalties, constrained, near_cut, repeated, too_large, interrupted"
    )
    failed: int
    interruptions: int


class LogprobGap(BaseModel):
    """Means over the audited answers, in nats a token: what the target thinks of its own answer and of the delivered
    one, and the difference. standard_error: of the difference; null below two answers."""

    own: float
    delivered: float
    gap: float
    standard_error: float | None


class DemotionReport(BaseModel):
    """at: Unix time. share: re-converged ones of the guard's window of `tokens` audited tokens at that time; interval:
    of the share."""

    at: int
    share: float
    interval: tuple[float, float]
    tokens: int


class AuditedVerifier(BaseModel):
    """verifier: with all its parameters; only its type where it is the rest beyond the first sets that were met.
    loosened_tokens: of the audited answers; audited_tokens: those replayed; interval: of the share, 95 %, Wilson's for
    as many independent tokens as these are worth."""

    verifier: dict[str, Any]
    answers: int
    loosened_tokens: int
    audited_tokens: int
    reconverged_tokens: int
    reconverged_share: float
    interval: tuple[float, float]
    logprob: LogprobGap
    demoted: DemotionReport | None

    @classmethod
    def of(cls, figures: SetFigures) -> Self:
        """Of a set with at least one audited answer."""
        answers, demotion, found = figures.answers, figures.demotion, figures.all
        return cls(
            verifier={"type": figures.verifier} if figures.params is None else figures.params.model_dump(),
            answers=answers,
            loosened_tokens=figures.loosened,
            audited_tokens=found.judged,
            reconverged_tokens=found.reconverged,
            reconverged_share=_rounded(found.share),
            interval=_both_rounded(found.interval()),
            logprob=LogprobGap(
                own=_rounded(figures.own_logprobs / answers),
                delivered=_rounded(figures.delivered_logprobs / answers),
                gap=_rounded(figures.mean_gap),
                standard_error=None if figures.gap_error is None else _rounded(figures.gap_error),
            ),
            demoted=None
            if demotion is None
            else DemotionReport(
                at=int(demotion.at),
                share=_rounded(demotion.share),
                interval=_both_rounded(demotion.interval),
                tokens=demotion.tokens,
            ),
        )


class AuditReport(BaseModel):
    """enabled: answers are being kept and replayed. since: Unix time of the start, or of the last DELETE."""

    object: str = "audit"
    enabled: bool
    since: int
    rule: AuditRule
    queue: AuditQueue
    verifiers: list[AuditedVerifier]

    @classmethod
    def of(cls, auditor: Auditor) -> Self:
        settings = auditor.settings
        return cls(
            enabled=auditor.running,
            since=int(auditor.figures.since),
            rule=AuditRule(
                sample_rate=settings.sample_rate,
                reconverge_tokens=settings.reconverge_tokens,
                run_tokens=RUN,
                max_shift=MOST_SHIFT,
                max_positions=settings.max_positions,
                floor=settings.floor,
                min_tokens=settings.min_tokens,
            ),
            queue=AuditQueue(
                waiting=auditor.waiting,
                replaying=auditor.replaying,
                places=settings.queue,
                dropped=auditor.dropped,
                skipped=dict(auditor.skipped),
                failed=auditor.failed,
                interruptions=auditor.interruptions,
            ),
            verifiers=[AuditedVerifier.of(figures) for figures in auditor.figures.sets()],
        )


class AuditEndpoints:
    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    async def show(self, _request: Request) -> Response:
        """What the shadow audit has found so far, by verifier and parameters."""
        return self._report()

    async def clear(self, request: Request) -> Response:
        """Forget what the audit has found and lift all demotions; answers with the empty report. Refused unless the
        server's settings allow it."""
        auditor = self._auditor
        if not auditor.settings.allow_reset:
            message = "This server keeps its audit: audit.allow_reset is off. A restart forgets it."
            raise ApiError(403, message, type="permission_error", code="audit_reset_not_allowed")
        lifted = sorted(auditor.figures.demoted_verifiers())
        auditor.clear()
        who = "somebody" if request.client is None else request.client.host
        log.warning("audit: cleared by %s, demotions lifted: %s", who, ", ".join(lifted) or "none")
        return self._report()

    def _report(self) -> Response:
        return JSONResponse(AuditReport.of(self._auditor).model_dump())


def _rounded(number: float) -> float:
    return round(number, 4)


def _both_rounded(interval: tuple[float, float]) -> tuple[float, float]:
    return _rounded(interval[0]), _rounded(interval[1])
