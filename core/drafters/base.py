"""What a drafter is asked for and what it leaves behind."""

from dataclasses import dataclass, field

from core.grammar import Grammar
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
        """Take proposed tokens up to the limit, the first end token or the first that the sequence's grammar
        forbids; True while more are wanted."""
        ends, grammar = self.sequence.request.end_token_ids, self.sequence.grammar
        legal = tokens if grammar is None else legal_part(grammar, self.drafts, tokens)
        for token in legal:
            if len(self.drafts) == self.limit:
                return False
            self.drafts.append(token)
            if token in ends:
                return False
        if len(legal) < len(tokens) or (grammar is not None and grammar.ends_with(self.drafts)):
            return False
        return len(self.drafts) < self.limit


def legal_part(grammar: Grammar, drafts: list[int], tokens: list[int]) -> list[int]:
    """The leading tokens that the grammar allows behind the drafts, which it allows all."""
    return tokens[: grammar.legal(drafts + tokens) - len(drafts)]
