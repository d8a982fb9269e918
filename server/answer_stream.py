"""read_answer: a generation's text deltas as parts: words, reasoning, tool calls. Every chat dialect renders these."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from server.answer_text import AnswerToken
from server.generation import Generation
from server.text.answer_parts import Part
from server.text.chat_format import AnswerReading


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """News about one choice. tokens: those to be listed whose text has been released, which a parser may still hold
    back. finish_reason: "stop", "length" or "tool_calls" in its last delta, else None."""

    index: int
    parts: tuple[Part, ...]
    tokens: tuple[AnswerToken, ...]
    finish_reason: str | None = None


async def read_answer(generation: Generation) -> AsyncIterator[AnswerDelta]:
    """Every choice's deltas as they happen, the last of each with a finish reason. ApiError if one fails."""
    reading = generation.plan.reading or AnswerReading()
    parsers = [reading.parser() for _ in generation.plan.requests]
    async for delta in generation.deltas():
        parser = parsers[delta.index]
        parts = parser.feed(delta.text)
        reason = delta.finish_reason
        if reason is not None:
            parts += parser.finish(cut_short=reason == "length")
            if reason == "stop" and parser.called:
                reason = reading.calls_reason
        if parts or delta.tokens or reason is not None:
            yield AnswerDelta(delta.index, tuple(parts), delta.tokens, reason)
