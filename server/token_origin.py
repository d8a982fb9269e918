"""Where an answer's token came from, as every dialect tells it: its provenance, and what verification saw there."""

from typing import Any

from pydantic import BaseModel

from core.provenance import Provenance
from core.sequence import CommittedToken
from server.text.token_bytes import TokenBytes

_RULES = {
    Provenance.DEFERRED: "fly",
    Provenance.CALIBRATED: "csd",
    Provenance.LENIENT: "lossy",
    Provenance.TYPICAL: "typical",
}


class Verification(BaseModel):
    """What verification saw in a token's row.

    draft_token: what had been drafted there, also where it was rejected; null where nothing had. target_token: the
    target's own choice. entropy, gap: of a draft that is not the target's choice and could have been loosened, null
    elsewhere: how undecided the target is (as the verifier's `entropy` says), and the draft's logit less the row's
    best. rule: the verifier that let such a draft through.
    """

    draft_token: str | None
    draft_token_id: int | None
    target_token: str
    target_token_id: int
    entropy: float | None
    gap: float | None
    rule: str | None


def verification(token: CommittedToken, table: TokenBytes) -> dict[str, Any] | None:
    """Of a token whose request asked for it, in the shape of `Verification`; None of any other."""
    verdict = token.verdict
    if verdict is None:
        return None
    draft = verdict.draft
    return {
        "draft_token": None if draft is None else table.label(draft),
        "draft_token_id": draft,
        "target_token": table.label(verdict.choice),
        "target_token_id": verdict.choice,
        "entropy": verdict.entropy,
        "gap": verdict.gap,
        "rule": _RULES.get(token.provenance),
    }


def origin(token: CommittedToken, table: TokenBytes) -> dict[str, Any]:
    """What `return_provenance` adds to a token's entry."""
    return {"provenance": token.provenance.value, "verification": verification(token, table)}
