"""Generation: the one meeting point of tokens and text, used by every API dialect.

A plan of one or more sequences is submitted as a whole; their events come back as text deltas in the order in which
they happen. Leaving the generation early, for whatever reason, aborts what is still running.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from core.provenance import FinishReason
from core.sequence import GenerationRequest, TokenLogprobs
from scheduler.admission import ContextTooLong, EngineStopped, QueueFull
from scheduler.events import Event, FinishedEvent, PromptEvent, TokensEvent
from scheduler.stream import RequestStream
from server import report
from server.answer_text import AnswerText, AnswerToken, Piece
from server.audit.record import AnswerRecord
from server.errors import ApiError, context_exceeded, internal, invalid, unavailable
from server.generation_plan import GenerationPlan
from server.live_model import LiveModel
from server.telemetry.request_watch import RequestWatch
from server.text.stop_walks import StopWalks


@dataclass(frozen=True, slots=True)
class Delta:
    """News about one sequence. finish_reason: "stop" or "length" in its last delta, else None. prompt: in its first
    one, if asked for, the log-probabilities of its prompt's tokens from the second on."""

    index: int
    text: str
    tokens: tuple[AnswerToken, ...]
    finish_reason: str | None = None
    prompt: tuple[TokenLogprobs, ...] | None = None


class Generation:
    """Submitted when built: ApiError if the engine refuses. Iterate it once; close it always."""

    def __init__(self, plan: GenerationPlan, model: LiveModel, watch: RequestWatch) -> None:
        """watch: is told of what is submitted, and of the end."""
        self._plan = plan
        self._model = model
        self._watch = watch
        watch.planned(plan)
        # The engine looks for stop strings in the same text that is shown, markup included.
        self._token_bytes = model.token_bytes
        if plan.reading is not None:
            self._token_bytes = model.token_bytes.showing(plan.reading.markup)
        self._walks = StopWalks(plan.stops, self._token_bytes, plan.reading)
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._ahead: tuple[int, Event] | None = None  # taken from the queue, not yet given out
        self._answers = [
            AnswerText(self._token_bytes, plan.stops, plan.list_tokens, plan.show_stop, self._walks.scope())
            for _ in plan.requests
        ]
        self._thoughts = [plan.reading.counter() if plan.reading is not None else None for _ in plan.requests]
        self._logprob_sums = [0.0] * len(plan.requests)
        self._finished: dict[int, FinishedEvent] = {}
        # By the first candidate of each prompt whose log-probabilities are still to be told: what came before them.
        self._early: dict[int, list[tuple[int, Event]]] = {
            index: [] for index, request in enumerate(plan.requests) if request.prompt_logprobs is not None
        }
        self._pumps: list[asyncio.Task[None]] = []
        self.completion_tokens = 0
        streams = self._submit()
        self._audits = self._watched_by_audit()
        self._pumps = [asyncio.create_task(self._pump(index, stream)) for index, stream in enumerate(streams)]

    def _submit(self) -> list[RequestStream]:
        streams: list[RequestStream] = []
        try:
            for request in self._plan.requests:
                streams.append(self._submit_one(request))
                self._watch.submitted(request)
        except Exception as error:
            refusal = self._refusal(error)
            self._watch.fail(refusal)
            self.close()
            raise refusal from error
        return streams

    def _submit_one(self, request: GenerationRequest) -> RequestStream:
        plan = self._plan
        return self._model.engine.submit(
            request,
            self._walks(),
            grammar=None if plan.constraint is None else plan.constraint.start(request.end_token_ids),
            spans=None if plan.reading is None else plan.reading.spans(self._model.token_bytes),
        )

    def _watched_by_audit(self) -> dict[int, AnswerRecord]:
        """By index. Of one candidate a prompt: those that can be replayed are greedy, and therefore alike."""
        plan, walks = self._plan, self._walks
        constrained, records = plan.constraint is not None, {}
        for index in range(0, len(plan.requests), plan.candidates_per_prompt):
            record = self._model.auditor.watch(plan.requests[index], walks, constrained, walks.held)
            if record is not None:
                records[index] = record
        return records

    def _refusal(self, error: Exception) -> Exception:
        if isinstance(error, QueueFull):
            message = "The server is busy: too many requests are waiting. Please try again later."
            return ApiError(429, message, type="rate_limit_error", code="queue_full", retry_after=error.retry_after)
        if isinstance(error, ContextTooLong):
            param, tokens = self._plan.prompt_param, error.prompt_tokens
            return context_exceeded(self._model.max_context, tokens, True, param, error.longest)
        if isinstance(error, EngineStopped):
            return unavailable("The server is shutting down.", retry_after=10)
        return invalid(f"{error}.") if isinstance(error, ValueError) else error

    async def _pump(self, index: int, stream: RequestStream) -> None:
        async with stream:
            async for event in stream:
                self._events.put_nowait((index, event))

    async def settle(self, patience: float) -> None:
        """Wait until the first event or for `patience` seconds, so that an answer that fails at once can still be
        a plain HTTP error. ApiError if the first event is a failure."""
        try:
            async with asyncio.timeout(patience):
                self._ahead = await self._events.get()
        except TimeoutError:
            return
        self._raise_failure(self._ahead[1])

    async def _next(self) -> tuple[int, Event]:
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None else await self._events.get()

    def _end_behind(self, index: int) -> FinishedEvent | None:
        """The good end of the sequence whose tokens have just been taken, if they were its last ones: the engine
        publishes both together, and so they can be told in one."""
        if self._ahead is None and not self._events.empty():
            self._ahead = self._events.get_nowait()
        match self._ahead:
            case (ended, FinishedEvent(reason=FinishReason.STOP | FinishReason.LENGTH) as event) if ended == index:
                self._ahead = None
                return event
        return None

    async def deltas(self) -> AsyncIterator[Delta]:
        """Every sequence's deltas as they happen, the last of each with a finish reason. ApiError if one fails."""
        while not self.finished:
            index, event = await self._next()
            self._raise_failure(event)
            every = self._plan.candidates_per_prompt
            if isinstance(event, PromptEvent):
                for candidate in range(index, index + every):
                    yield Delta(candidate, "", (), prompt=event.logprobs)
                for early, known in self._early.pop(index, ()):
                    for delta in self._read(early, known, None):
                        yield delta
            elif (first := index - index % every) in self._early:
                self._early[first].append((index, event))
            else:
                end = self._end_behind(index) if isinstance(event, TokensEvent) else None
                for delta in self._read(index, event, end):
                    yield delta

    def _read(self, index: int, event: Event, end: FinishedEvent | None) -> Iterator[Delta]:
        """What tokens or an end say, at most one delta. end: behind the tokens, to be told with them."""
        if isinstance(event, FinishedEvent):
            yield self._finish(index, event, Piece("", ()))
        elif isinstance(event, TokensEvent):
            self.completion_tokens += len(event.tokens)
            self._count_thoughts(index, event)
            if (audit := self._audits.get(index)) is not None:
                audit.push(event.tokens)
            self._logprob_sums[index] += sum(token.logprobs.logprob for token in event.tokens if token.logprobs)
            piece = self._answers[index].push(event.tokens)
            if end is not None:
                yield self._finish(index, end, piece)
            elif piece.text or piece.tokens:
                yield Delta(index, piece.text, piece.tokens)

    def _count_thoughts(self, index: int, event: TokensEvent) -> None:
        if (counter := self._thoughts[index]) is not None:
            for token in event.tokens:
                counter.push(self._token_bytes[token.token_id])

    def _finish(self, index: int, event: FinishedEvent, piece: Piece) -> Delta:
        """The last delta of a sequence; piece: what its last tokens have just let out."""
        self._finished[index] = event
        if (audit := self._audits.get(index)) is not None:
            self._model.auditor.offer(audit, event.reason)
        rest = self._answers[index].finish(event.reason)
        return Delta(index, piece.text + rest.text, piece.tokens + rest.tokens, event.reason.value)

    def _raise_failure(self, event: Event) -> None:
        if not isinstance(event, FinishedEvent):
            return
        if event.reason is FinishReason.ERROR:
            failure = internal()
            raise ApiError(500, event.message or failure.message, type=failure.type, code="engine_error")
        if event.reason is FinishReason.CONSTRAINT:
            # Not a 5xx, which SDKs would retry in vain: it is the constraint that this model cannot follow.
            message = f"The answer cannot go on under its constraint: {event.message}."
            raise ApiError(400, message, param=self._plan.constraint_param, code="constraint_failed")
        if event.reason is FinishReason.ABORT:
            raise unavailable("The server is shutting down and could not finish the answer.", retry_after=10)

    def failed(self, error: Exception) -> None:
        """The answer ends with this error, whoever made it. Before close()."""
        self._watch.fail(error)

    def close(self) -> None:
        """Abort whatever has not finished. Safe to call again."""
        for pump in self._pumps:
            pump.cancel()
        # First: what waits ends at once, and its end would look as if the engine had given it up.
        self._watch.close()
        for index, request in enumerate(self._plan.requests):
            if index not in self._finished:
                self._model.engine.abort(request.request_id)

    @property
    def plan(self) -> GenerationPlan:
        return self._plan

    def best(self) -> list[int]:
        """The answers, once everything has finished: of each prompt's candidates the likeliest per token, best first;
        all of them in order where none were to be picked."""
        every, wanted = self._plan.candidates_per_prompt, self._plan.choices_per_prompt
        best: list[int] = []
        for first in range(0, len(self._answers), every):
            candidates = range(first, first + every)
            best += sorted(candidates, key=self.mean_logprob, reverse=True)[:wanted] if every > wanted else candidates
        return best

    def mean_logprob(self, index: int) -> float:
        """Of a finished sequence's tokens, if they were asked for with their log-probabilities."""
        return self._logprob_sums[index] / max(1, self._finished[index].completion_tokens)

    @property
    def finished(self) -> bool:
        """Whether every sequence has finished."""
        return len(self._finished) == len(self._answers)

    def usage(self) -> dict[str, Any]:
        """So far while it runs; complete, with the prefix cache's share, when everything has finished."""
        cached: int | None = None
        if self.finished:
            firsts = range(0, len(self._answers), self._plan.candidates_per_prompt)
            cached = sum(self._finished[index].cached_prompt_tokens for index in firsts)
        thoughts = [counter.tokens for counter in self._thoughts if counter is not None]
        reasoning = sum(thoughts) if thoughts else None
        return report.usage(self._plan.prompt_tokens, self.completion_tokens, cached, reasoning)

    def speculation(self) -> dict[str, Any]:
        first = self._plan.requests[0]
        events = [self._finished[index] for index in sorted(self._finished)]
        return report.speculation(first.verifier.type, first.drafter, events, self._plan.warnings)
