"""ResponseRenderer: a generation as a Response object, or as the events of its making."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from server.answer_stream import AnswerDelta, read_answer
from server.answer_text import AnswerToken
from server.errors import ApiError, internal
from server.generation import Generation
from server.openai_api.responses_object import ResponseObject
from server.openai_api.responses_output import Event, OutputWriter
from server.openai_api.responses_schemas import ResponsesBody
from server.streaming import Chunks, data_line, long_data_line
from server.text.answer_parts import CallArguments, CallStart, Content, Part, Reasoning
from server.text.token_bytes import TokenBytes
from server.token_origin import origin

logger = logging.getLogger(__name__)


async def named_events(chunks: Chunks) -> AsyncIterator[bytes]:
    """Events named by their type. There is no [DONE]: the last one says how the answer ended."""
    async for chunk in chunks:
        kind: str = chunk["type"]
        # All but deltas may hold the whole answer, with its log-probabilities: too much for the event loop.
        data = data_line(chunk) if kind.endswith(".delta") else await asyncio.to_thread(long_data_line, chunk)
        yield f"event: {kind}\n".encode() + data + b"\n"


class ResponseRenderer:
    """Renders one answer, once."""

    def __init__(self, response: ResponseObject, body: ResponsesBody, token_bytes: TokenBytes) -> None:
        self._response = response
        self._token_bytes = token_bytes
        self._provenance = bool(body.return_provenance)
        self._writer = OutputWriter()
        self._waiting: deque[AnswerToken] = deque()  # not known yet whether they belong to words
        self._said = 0  # where in the answer the last words end

    async def whole(self, generation: Generation) -> dict[str, Any]:
        response: dict[str, Any] = {}
        async for event in self._events(generation):
            response = event.get("response", response)
        return response

    async def chunks(self, generation: Generation) -> AsyncIterator[Event]:
        """Numbered events. Whatever goes wrong after the first of them is the last one's `error`."""
        number = 0
        async for event in self._told(generation):
            yield {**event, "sequence_number": number}
            number += 1

    async def _told(self, generation: Generation) -> AsyncIterator[Event]:
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._response.in_progress()}
        try:
            async for event in self._events(generation):
                yield event
        except Exception as error:
            generation.failed(error)
            if not isinstance(error, ApiError):
                logger.exception("a stream failed")
            yield self._failed(error if isinstance(error, ApiError) else internal())

    def _failed(self, error: ApiError) -> Event:
        return {"type": "response.failed", "response": self._response.failed(self._writer.abandon(), error)}

    async def _events(self, generation: Generation) -> AsyncIterator[Event]:
        """The output's events, then the one that holds the finished answer."""
        cut_short = False
        async for delta in read_answer(generation):
            for event in self._grow(delta):
                yield event
            cut_short = delta.finish_reason == "length"
        for event in self._writer.finish(cut_short):
            yield event
        response = self._response.finished(self._writer.items, cut_short, generation.usage(), generation.speculation())
        yield {"type": f"response.{response['status']}", "response": response}

    def _grow(self, delta: AnswerDelta) -> Iterator[Event]:
        self._waiting += delta.tokens
        for part in delta.parts:
            yield from self._write(part)
        # What is left has no text of its own, such as the end token, or text that was cut off.
        if delta.finish_reason is not None and self._waiting and (self._writer.speaking or not self._writer.items):
            yield from self._writer.say("", self._take_entries(None))

    def _write(self, part: Part) -> Iterator[Event]:
        match part:
            case Content(text):
                self._drop_before(part.start)
                self._said = part.end
                yield from self._writer.say(text, self._take_entries(part.end))
                return
        if self._writer.speaking and (entries := self._take_entries(self._said)):  # they were held back
            yield from self._writer.say("", entries)
        match part:
            case Reasoning(text):
                yield from self._writer.think(text)
            case CallStart(_, call_id, name):
                yield from self._writer.call(call_id, name)
            case CallArguments(_, text):
                yield from self._writer.arguments(text)

    def _drop_before(self, start: int) -> None:
        """Of the tokens that wait, forget those that end before the words which begin there: thoughts and markup."""
        while len(self._waiting) > 1 and self._waiting[0].text_offset < start >= self._waiting[1].text_offset:
            self._waiting.popleft()

    def _take_entries(self, end: int | None) -> list[dict[str, Any]]:
        """Of the tokens that wait and begin before `end`."""
        entries: list[dict[str, Any]] = []
        while self._waiting and (end is None or self._waiting[0].text_offset < end):
            entries.append(self._entry(self._waiting.popleft()))
        return entries

    def _entry(self, listed: AnswerToken) -> dict[str, Any]:
        token, table = listed.token, self._token_bytes
        found = token.logprobs
        entry: dict[str, Any] = {
            "token": table.label(token.token_id),
            "logprob": found.logprob if found is not None else 0.0,
            "bytes": table.bytes_of(token.token_id) or [],
            "top_logprobs": [
                {"token": table.label(other), "logprob": logprob, "bytes": table.bytes_of(other) or []}
                for other, logprob in (found.top if found is not None else ())
            ],
        }
        return entry | origin(token, table) if self._provenance else entry
