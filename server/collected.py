"""A generation read to its end: what every sequence came to, for answers that are sent whole."""

from dataclasses import dataclass, field

from core.sequence import TokenLogprobs
from server.answer_text import AnswerToken
from server.generation import Generation


@dataclass(slots=True)
class Collected:
    """One sequence's answer. prompt: log-probabilities of its prompt's tokens from the second on, if asked for."""

    text: str = ""
    tokens: list[AnswerToken] = field(default_factory=list)
    prompt: tuple[TokenLogprobs, ...] = ()
    finish_reason: str = ""


async def collect(generation: Generation) -> list[Collected]:
    """All sequences, in their order. ApiError if one fails."""
    sequences = [Collected() for _ in range(len(generation.plan.requests))]
    async for delta in generation.deltas():
        sequence = sequences[delta.index]
        sequence.text += delta.text
        sequence.tokens += delta.tokens
        sequence.prompt = delta.prompt or sequence.prompt
        sequence.finish_reason = delta.finish_reason or ""
    return sequences
