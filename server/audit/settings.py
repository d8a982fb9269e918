"""AuditSettings: how many loose answers are replayed, how they are judged, and what the guard demands."""

from typing import Self

from pydantic import Field, model_validator

from server.settings_base import Section, conflict


class AuditSettings(Section):
    """sample_rate: share of the loose answers that are kept for replaying; 0 turns the audit off. reconverge_tokens:
    within how many the target must come back. max_positions: of one answer's loosened tokens, at most so many are
    replayed. queue: answers that may wait for their replay. quiet_seconds: a replay goes on once nobody has been in the
    engine for so long. floor: a verifier is demoted where of min_tokens audited tokens a share re-converged that is
    certainly below this; null for no guard. allow_reset: DELETE /v1/audit, which lifts demotions, may be asked by
    whoever may ask for answers."""

    sample_rate: float = Field(0.0, ge=0, le=1)
    reconverge_tokens: int = Field(32, ge=1, le=1024)
    max_positions: int = Field(16, ge=1, le=1024)
    queue: int = Field(64, ge=1, le=4096)
    quiet_seconds: float = Field(1.0, ge=0.05)
    floor: float | None = Field(None, gt=0, le=1)
    min_tokens: int = Field(200, ge=1, le=1_000_000)
    allow_reset: bool = False

    @model_validator(mode="after")
    def _guard_sees_something(self) -> Self:
        if self.floor is not None and self.sample_rate == 0:
            raise conflict(f"floor = {self.floor:g} needs a sample_rate above 0: without an audit nothing is judged")
        return self
