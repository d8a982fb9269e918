"""One timed answer, and a group of them asked for at once, however they were asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self


@dataclass(frozen=True, slots=True)
class Speculated:
    """An answer's speculation figures; they add up over answers. loosened: tokens by rule."""

    rounds: int = 0
    round_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    loosened: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> Self:
        """From the `speculation` object of a response."""
        length = report["mean_accepted_length"] or 0.0
        return cls(
            rounds=report["rounds"],
            round_tokens=round(length * report["rounds"]),
            draft_tokens=report["draft_tokens"],
            accepted_tokens=report["accepted_tokens"],
            loosened=dict(report["loosened_tokens"]),
        )

    @classmethod
    def total(cls, parts: Sequence["Speculated"]) -> Self:
        rules = dict.fromkeys(rule for part in parts for rule in part.loosened)
        return cls(
            rounds=sum(part.rounds for part in parts),
            round_tokens=sum(part.round_tokens for part in parts),
            draft_tokens=sum(part.draft_tokens for part in parts),
            accepted_tokens=sum(part.accepted_tokens for part in parts),
            loosened={rule: sum(part.loosened.get(rule, 0) for part in parts) for rule in rules},
        )

    @property
    def tau(self) -> float | None:
        """Tokens per verification round."""
        return self.round_tokens / self.rounds if self.rounds else None

    @property
    def acceptance(self) -> float | None:
        """Share of the drafts that were delivered."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: how many. content: its token ids, or its text where only that is told; equal for equal answers.
    asked: when, on a clock that all answers of a group share. arrivals: when news of it came, in seconds on the same
    clock. first_tokens: how many tokens the first arrival brought."""

    tokens: int
    content: tuple[int, ...] | str
    asked: float
    arrivals: tuple[float, ...]
    first_tokens: int = 1
    prompt_tokens: int = 0
    speculated: Speculated = Speculated()

    @property
    def ids(self) -> tuple[int, ...]:
        """Its token ids. TypeError if only its text is known."""
        if isinstance(self.content, str):
            raise TypeError("this answer's token ids are not known")
        return self.content

    @property
    def first_token_seconds(self) -> float:
        """From the request to the first token: waiting and prefill."""
        return self.arrivals[0] - self.asked

    @property
    def decode_seconds(self) -> float:
        return self.arrivals[-1] - self.arrivals[0]

    @property
    def token_seconds(self) -> float | None:
        """Mean time of a token after the first arrival, prefill excluded; None if all came at once."""
        later = self.tokens - self.first_tokens
        return self.decode_seconds / later if later > 0 and self.decode_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Group:
    """Answers to requests sent at the same time."""

    answers: tuple[Answer, ...]

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def rate(self) -> float | None:
        """Tokens per second of all together behind the first arrivals: between the earliest of them and the last
        token. The waiting for first tokens is in first_token_seconds instead."""
        later = self.tokens - sum(answer.first_tokens for answer in self.answers)
        began = min(answer.arrivals[0] for answer in self.answers)
        ended = max(answer.arrivals[-1] for answer in self.answers)
        return later / (ended - began) if later > 0 and ended > began else None

    @property
    def whole_rate(self) -> float:
        """Tokens per second from the first request to the last token, prefill included."""
        began = min(answer.asked for answer in self.answers)
        return self.tokens / max(1e-9, max(answer.arrivals[-1] for answer in self.answers) - began)

    @property
    def speculated(self) -> Speculated:
        return Speculated.total([answer.speculated for answer in self.answers])

    @property
    def contents(self) -> list[tuple[int, ...] | str]:
        return [answer.content for answer in self.answers]


class Door(Protocol):
    """A way to ask: the engine in this process, a server over HTTP, somebody else's server."""

    async def ask(self, messages: Sequence[str], fields: Mapping[str, Any], max_tokens: int) -> Group:
        """One user message each, all at once. fields: what the requests say beside prompt and length."""
        ...
