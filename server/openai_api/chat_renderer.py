"""ChatRenderer: a generation as chat.completion, or as chat.completion.chunk objects."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from server.answer_stream import AnswerDelta, read_answer
from server.answer_text import AnswerToken
from server.generation import Generation
from server.openai_api.answer import Envelope
from server.openai_api.schemas import ChatBody
from server.text.answer_parts import CallArguments, CallStart, Content, Part, Reasoning
from server.text.token_bytes import TokenBytes
from server.token_origin import origin

Entry = dict[str, Any]


class ChatRenderer:
    def __init__(self, envelope: Envelope, body: ChatBody, token_bytes: TokenBytes) -> None:
        self._envelope = envelope
        self._token_bytes = token_bytes
        self._choices = body.n or 1
        self._logprobs = bool(body.logprobs)
        self._provenance = bool(body.return_provenance)
        self._usage = body.include_usage
        self._continuous = body.continuous_usage

    async def whole(self, generation: Generation) -> dict[str, Any]:
        messages = [_Message() for _ in range(self._choices)]
        entries: list[list[Entry]] = [[] for _ in messages]
        reasons = [""] * self._choices
        async for delta in read_answer(generation):
            messages[delta.index].add(delta.parts)
            entries[delta.index] += self._entries(delta)
            reasons[delta.index] = delta.finish_reason or ""
        choices = [
            {
                "index": index,
                "message": message.shown(),
                "logprobs": self._logprobs_of(entries[index]),
                "finish_reason": reasons[index],
            }
            for index, message in enumerate(messages)
        ]
        return self._envelope.wrap(choices, usage=generation.usage(), speculation=generation.speculation())

    async def chunks(self, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        """Role first, then what is said, then exactly one chunk with a finish reason for each choice, then usage if
        asked. A delta's tokens are listed with the first of its chunks."""
        for index in range(self._choices):
            yield self._chunk(generation, index, {"role": "assistant", "content": ""})
        async for delta in read_answer(generation):
            entries = self._entries(delta)
            pieces = [_piece(part) for part in delta.parts] or ([{"content": ""}] if entries else [])
            for piece in pieces:
                yield self._chunk(generation, delta.index, piece, entries)
                entries = []
            if delta.finish_reason is not None:
                chunk = self._chunk(generation, delta.index, {}, finish_reason=delta.finish_reason)
                if generation.finished and not self._usage:
                    chunk["speculation"] = generation.speculation()
                yield chunk
        if self._usage:
            yield self._envelope.wrap([], usage=generation.usage(), speculation=generation.speculation())

    def _chunk(
        self,
        generation: Generation,
        index: int,
        delta: dict[str, Any],
        entries: list[Entry] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs_of(entries) if entries else None,
            "finish_reason": finish_reason,
        }
        more: dict[str, Any] = {}
        if self._continuous:
            more["usage"] = generation.usage()
        elif self._usage:
            more["usage"] = None
        return self._envelope.wrap([choice], **more)

    def _logprobs_of(self, entries: list[Entry]) -> dict[str, Any] | None:
        return {"content": entries, "refusal": None} if self._logprobs else None

    def _entries(self, delta: AnswerDelta) -> list[Entry]:
        return [self._entry(token) for token in delta.tokens]

    def _entry(self, listed: AnswerToken) -> Entry:
        token, table = listed.token, self._token_bytes
        logprobs = token.logprobs
        entry: Entry = {
            "token": table.label(token.token_id),
            "logprob": logprobs.logprob if logprobs is not None else 0.0,
            "bytes": table.bytes_of(token.token_id),
            "top_logprobs": [
                {"token": table.label(other), "logprob": logprob, "bytes": table.bytes_of(other)}
                for other, logprob in (logprobs.top if logprobs is not None else ())
            ],
        }
        if self._provenance:
            entry |= origin(token, table)
        return entry


def _piece(part: Part) -> dict[str, Any]:
    """A part as a chunk's delta."""
    match part:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(index, call_id, name):
            call = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


class _Message:
    """An assistant's message, collected."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[CallStart, list[str]]] = []

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            match part:
                case Content(text):
                    self._content.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case CallStart():
                    self._calls.append((part, []))
                case CallArguments(index, text):
                    self._calls[index][1].append(text)

    def shown(self) -> dict[str, Any]:
        """Content is null where the answer is calls alone; keys that not every answer has are left out."""
        content = "".join(self._content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or (None if self._calls else ""),
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {"id": start.id, "type": "function", "function": {"name": start.name, "arguments": "".join(pieces)}}
                for start, pieces in self._calls
            ]
        return message
