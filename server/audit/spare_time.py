"""SpareTime: asks the engine for the target's own words while nobody else wants it.

Whoever arrives meanwhile ends the piece that runs (background requests, scheduler/engine.py). What came before that
is kept and the rest is asked for later, which changes nothing: a row's logits do not depend on who computed the tokens
before it, nor when.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from core.provenance import FinishReason
from core.sequence import CommittedToken, GenerationRequest, StopCondition
from scheduler.admission import EngineBusy
from scheduler.engine import AsyncEngine
from scheduler.events import FinishedEvent, PromptEvent, TokensEvent
from scheduler.stream import RequestStream

MOST_INTERRUPTIONS = 8  # of one piece, one after the other, before anything of it was found out
_SETTLING_SECONDS = 0.005  # until the round in flight has ended, as often as it takes


class ReplayFailedError(Exception):
    """The engine failed while it replayed an answer."""


class ReplayInterruptedError(Exception):
    """Somebody came, again and again, before the replay got any further: a prompt that is cut short keeps nothing."""


@dataclass(slots=True)
class Words:
    """What a background request answered. ended: by itself, rather than at its limit or with enough."""

    tokens: list[CommittedToken] = field(default_factory=list)
    ended: bool = False

    @property
    def ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]


class SpareTime:
    """interruptions: pieces ended by somebody's arrival."""

    def __init__(self, engine: AsyncEngine, quiet_seconds: float) -> None:
        self._engine = engine
        self._quiet_seconds = quiet_seconds
        self.interruptions = 0

    async def words(
        self,
        request: GenerationRequest,
        stop: Callable[[list[int]], StopCondition | None],
        enough: Callable[[list[int]], bool],
    ) -> Words:
        """What a background request answers. stop: its stop condition behind the words so far. enough: of the words so
        far; the rest is not asked for. ReplayFailedError; ReplayInterruptedError; EngineStopped when the server shuts
        down."""
        words, patience = Words(), _Patience()
        while True:
            known = words.ids
            async with await self._submit(_behind(request, known), stop(known)) as stream:
                async for event in stream:
                    if isinstance(event, TokensEvent):
                        words.tokens += event.tokens
                        if enough(words.ids):
                            return words
                    elif isinstance(event, FinishedEvent) and not self._interrupted(event, patience, len(words.tokens)):
                        words.ended = event.reason is FinishReason.STOP
                        return words

    async def scores(self, request: GenerationRequest) -> list[float]:
        """The log-probabilities that a background request asks for of its prompt. Errors as of `words`."""
        scores: list[float] = []
        patience = _Patience()
        while True:
            rest = replace(request, scored_from=request.scored_from + len(scores))
            async with await self._submit(rest, None) as stream:
                async for event in stream:
                    if isinstance(event, PromptEvent):
                        scores += (token.logprob for token in event.logprobs)
                    elif isinstance(event, FinishedEvent) and not self._interrupted(event, patience, len(scores)):
                        return scores

    def _interrupted(self, event: FinishedEvent, patience: "_Patience", known: int) -> bool:
        if event.reason is FinishReason.ABORT:
            self.interruptions += 1
            patience.interrupted(known)
            return True
        if event.reason in (FinishReason.STOP, FinishReason.LENGTH):
            return False
        raise ReplayFailedError(event.message or event.reason.value)

    async def _submit(self, request: GenerationRequest, stop: StopCondition | None) -> RequestStream:
        while True:
            while (idle := self._engine.idle_seconds) < self._quiet_seconds:  # noqa: ASYNC110
                await asyncio.sleep(self._quiet_seconds - idle)
            try:
                return self._engine.submit(request, stop)
            except EngineBusy:
                await asyncio.sleep(_SETTLING_SECONDS)


@dataclass(slots=True)
class _Patience:
    """Of one piece. known: words or scores when it was last interrupted; in_vain: interruptions since it grew."""

    known: int = 0
    in_vain: int = 0

    def interrupted(self, known: int) -> None:
        """ReplayInterruptedError if it leads nowhere."""
        self.in_vain = self.in_vain + 1 if known == self.known else 0
        self.known = known
        if self.in_vain >= MOST_INTERRUPTIONS:
            raise ReplayInterruptedError


def _behind(request: GenerationRequest, words: list[int]) -> GenerationRequest:
    """The same request once so many of its words are known."""
    if not words:
        return request
    return replace(
        request,
        prompt=(*request.prompt, *words),
        max_tokens=request.max_tokens - len(words),
        sampling=replace(request.sampling, min_tokens=max(0, request.sampling.min_tokens - len(words))),
    )
