"""ResponseRenderer: a generation as a Response object, or as the events of its making."""

import asyncio
import logging
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
        self._logprobs = body.alternatives is not None
        self._provenance = bool(body.return_provenance)
        self._writer = OutputWriter()
        self._waiting: list[AnswerToken] = []  # belong to text that is still held back

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
        except ApiError as error:
            yield self._failed(error)
        except Exception:
            logger.exception("a stream failed")
            yield self._failed(internal())

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
        if delta.parts and not self._writer.speaking:
            self._waiting.clear()  # only words have logprobs; these tokens were thoughts or a call
        # What is left has no text of its own, such as the end token, or text that a parser held back for nothing.
        if delta.finish_reason is not None and self._waiting and (self._writer.speaking or not self._writer.items):
            yield from self._writer.say("", self._take_entries())

    def _write(self, part: Part) -> Iterator[Event]:
        match part:
            case Content(text):
                if not self._writer.speaking:
                    self._drop_before(text)
                yield from self._writer.say(text, self._take_entries())
            case Reasoning(text):
                yield from self._writer.think(text)
            case CallStart(_, call_id, name):
                yield from self._writer.call(call_id, name)
            case CallArguments(_, text):
                yield from self._writer.arguments(text)

    def _drop_before(self, words: str) -> None:
        """Of the tokens that wait, forget those before the ones that spell these words: thoughts and markup."""
        table = self._token_bytes
        start = b"".join(table[token.token.token_id] for token in self._waiting).rfind(words.encode())
        while self._waiting and start >= (length := len(table[self._waiting[0].token.token_id])) and start > 0:
            start -= length
            self._waiting.pop(0)

    def _take_entries(self) -> list[dict[str, Any]]:
        tokens, self._waiting = self._waiting, []
        return [self._entry(token) for token in tokens] if self._logprobs else []

    def _entry(self, listed: AnswerToken) -> dict[str, Any]:
        token, table = listed.token, self._token_bytes
        found = token.logprobs
        entry = {
            "token": table.label(token.token_id),
            "logprob": found.logprob if found is not None else 0.0,
            "bytes": table.bytes_of(token.token_id) or [],
            "top_logprobs": [
                {"token": table.label(other), "logprob": logprob, "bytes": table.bytes_of(other) or []}
                for other, logprob in (found.top if found is not None else ())
            ],
        }
        return entry | {"provenance": token.provenance.value} if self._provenance else entry
