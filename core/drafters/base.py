"""What a drafter is asked for and what it leaves behind."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from core.grammar import Grammar, explore
from core.sequence import GenerationRequest, Sequence

DRAFTERS = ("model", "prompt_lookup", "multilevel", "token_recycling", "datastore")
"""All drafters by name."""

MODEL_DRAFTERS = ("model", "multilevel")
"""Those that run the draft model."""

FREE_DRAFTERS = ("prompt_lookup", "token_recycling", "datastore")
"""Those that cost no forward."""

LOOKUP_DRAFTERS = ("prompt_lookup", "multilevel")
"""Those that look into the text so far."""


def drafters_of(request: GenerationRequest) -> tuple[str, ...]:
    """Those that may draft for the request."""
    return request.drafter, *request.other_drafters


class DraftStep(NamedTuple):
    """One forward of the draft model: rows fed to it, for so many sequences, and its seconds, from the lookup
    before it until its choices were on the host."""

    rows: int
    sequences: int
    seconds: float


@dataclass(slots=True)
class DraftJob:
    """One sequence's order for a round, filled in by its drafter.

    limit: at most so many drafts. min_reach, 0 to 1: the first draft with less than this chance of being reached and
    accepted is its last; 0: the draft model is never asked. min_guessed_reach: likewise, and lower, where lookup has a
    guess for the next turn, which may then yield several drafts; None for min_reach. A draft that the draft model gives
    a probability of p is right with a chance of p ** doubt, and accepted though wrong with one of `forgiving`.
    guess_tokens: the longest guess that lookup makes for the draft model, 0 for none.
    drafts: the proposal, d[0..K-1]. reaches: the product of the draft model's own probabilities up to each; empty where
    min_reach is 0. reach: the chance that the last is reached and accepted. turns: draft forwards it took part in.
    fed: how many leading tokens of `sequence.tokens + drafts` have valid draft KV afterwards; the drafts among them are
    unverified, so only the round, which knows how many were accepted, may turn this into a watermark.
    """

    sequence: Sequence
    limit: int
    min_reach: float = 0.0
    min_guessed_reach: float | None = None
    doubt: float = 1.0
    forgiving: float = 0.0
    guess_tokens: int = 0
    drafts: list[int] = field(default_factory=list)
    reaches: list[float] = field(default_factory=list)
    reach: float = 1.0
    turns: int = 0
    fed: int = 0

    def __post_init__(self) -> None:
        self.fed = self.sequence.draft_tokens

    @property
    def least_reach(self) -> float:
        """Below it no turn is worth its while."""
        if self.min_guessed_reach is None or not self.guess_tokens:
            return self.min_reach
        return self.min_guessed_reach

    def worth_a_turn(self, guessed: bool) -> bool:
        """Whether it is likely enough that all drafts so far are accepted. guessed: lookup has a guess for the turn."""
        if not self.reaches:
            return True
        if guessed and self.min_guessed_reach is not None:
            return self.reach >= self.min_guessed_reach
        return self.reach >= self.min_reach

    def extend(self, tokens: list[int], chances: list[float] | None = None) -> bool:
        """Take proposed tokens up to the limit, the first end token, the first that the sequence's grammar forbids or
        the first whose reach is too low; True while more are wanted.

        chances: the draft model's own probability of each. The first draft below min_reach is still taken: its forward
        is paid for, and the row that checks it costs the target less.
        """
        ends, grammar = self.sequence.request.end_token_ids, self.sequence.grammar
        legal = tokens if grammar is None else legal_part(grammar, self.drafts, tokens)
        for index, token in enumerate(legal):
            if len(self.drafts) == self.limit:
                return False
            self.drafts.append(token)
            if chances is not None:
                self._count(chances[index])
                if self.reach < self.least_reach:
                    return False
            if token in ends:
                return False
        if len(legal) < len(tokens) or (grammar is not None and grammar.ends_with(self.drafts)):
            return False
        return len(self.drafts) < self.limit

    def _count(self, chance: float) -> None:
        self.reaches.append((self.reaches[-1] if self.reaches else 1.0) * chance)
        right = chance**self.doubt
        self.reach *= right + (1 - right) * self.forgiving


def legal_part(grammar: Grammar, drafts: list[int], tokens: list[int]) -> list[int]:
    """The leading tokens that the grammar allows behind the drafts, which it allows all."""
    return tokens[: grammar.legal(drafts + tokens) - len(drafts)]


def explore_behind(wants: Iterable[tuple[DraftJob, list[int]]]) -> None:
    """Make the masks before, between and behind these tokens behind the jobs' drafts, all grammars side by side;
    asked one by one, each would make its own."""
    explore((job.sequence.grammar, job.drafts + tokens) for job, tokens in wants if job.sequence.grammar is not None)
