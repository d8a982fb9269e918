"""One timed answer, and a group of them asked for by clients side by side, however they were asked."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    clock. first_tokens: how many tokens the first arrival brought. estimated_speedup: as the server reports it."""

    tokens: int
    content: tuple[int, ...] | str
    asked: float
    arrivals: tuple[float, ...]
    first_tokens: int = 1
    prompt_tokens: int = 0
    speculated: Speculated = Speculated()
    estimated_speedup: float | None = None

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

    def tokens_within(self, began: float, ended: float) -> float:
        """How many of its tokens came after `began`, up to `ended`. Those behind the first arrival are shared out
        evenly among the later ones, since not every server tells how many each brought."""
        inside = [began < arrival <= ended for arrival in self.arrivals]
        found = float(self.first_tokens if inside[0] else 0)
        if len(inside) > 1:
            found += (self.tokens - self.first_tokens) * sum(inside[1:]) / (len(inside) - 1)
        return found


@dataclass(frozen=True, slots=True)
class Group:
    """Answers to requests in the order in which they were sent. clients: how many asked, each for its next answer as
    soon as it had the one before; None for one client an answer, all at the same time."""

    answers: tuple[Answer, ...]
    clients: int | None = None

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
    def busy_rate(self) -> float | None:
        """Tokens per second of all together while every client was being answered: from when each had the first token
        of its first answer to when one found nothing left to ask. None if that is no time at all. The same as `rate`
        for a single answer; with several, nobody's waiting for the slowest of the last answers is in it."""
        clients = self.clients or len(self.answers)
        began = max(answer.arrivals[0] for answer in self.answers[:clients])
        ended = sorted(answer.arrivals[-1] for answer in self.answers)[-clients]
        if ended <= began:
            return None
        tokens = sum(answer.tokens_within(began, ended) for answer in self.answers)
        return tokens / (ended - began) if tokens > 0 else None

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

    async def ask(
        self, messages: Sequence[str], fields: Mapping[str, Any], max_tokens: int, clients: int | None = None
    ) -> Group:
        """One user message each. fields: what the requests say beside prompt and length. clients: as in Group."""
        ...


async def by_clients(asking: Sequence[Callable[[], Awaitable[Answer]]], clients: int | None) -> Group:
    """Ask in this order, at most `clients` at a time."""
    free = asyncio.Semaphore(clients or max(1, len(asking)))

    async def one(ask: Callable[[], Awaitable[Answer]]) -> Answer:
        async with free:
            return await ask()

    return Group(tuple(await asyncio.gather(*map(one, asking))), clients)
