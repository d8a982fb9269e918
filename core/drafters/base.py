"""What a drafter is asked for and what it leaves behind."""

from dataclasses import dataclass, field

from core.sequence import Sequence

DRAFTERS = ("model", "prompt_lookup", "multilevel")
"""All drafters by name."""

MODEL_DRAFTERS = ("model", "multilevel")
"""Those that run the draft model."""


@dataclass(slots=True)
class DraftJob:
    """One sequence's order for a round, filled in by its drafter.

    limit: at most so many drafts. drafts: the proposal, d[0..K-1]. fed: how many leading tokens of
    `sequence.tokens + drafts` have valid draft KV afterwards; the drafts among them are unverified,
    so only the round, which knows how many were accepted, may turn this into a watermark.
    """

    sequence: Sequence
    limit: int
    drafts: list[int] = field(default_factory=list)
    fed: int = 0

    def __post_init__(self) -> None:
        self.fed = self.sequence.draft_tokens

    def extend(self, tokens: list[int]) -> bool:
        """Take proposed tokens up to the limit or the first end token; True while more are wanted."""
        ends = self.sequence.request.end_token_ids
        for token in tokens:
            if len(self.drafts) == self.limit:
                return False
            self.drafts.append(token)
            if token in ends:
                return False
        return len(self.drafts) < self.limit
