"""Shapes of TGI's answers, for the OpenAPI document."""

from typing import Literal

from pydantic import BaseModel, RootModel

from core.provenance import Provenance
from server.openai_api.answer_schemas import Speculation
from server.token_origin import Verification

Reason = Literal["length", "eos_token", "stop_sequence"]


class TgiError(BaseModel):
    """error_type: "validation", "overloaded" or "generation"."""

    error: str
    error_type: str


class PrefillToken(BaseModel):
    """logprob: null for the first."""

    id: int
    text: str
    logprob: float | None


class Token(BaseModel):
    """special: its text is a name, and not part of the generated text. provenance, verification: where
    `return_provenance` asks."""

    id: int
    text: str
    logprob: float
    special: bool
    provenance: Provenance | None = None
    verification: Verification | None = None


class Sequence(BaseModel):
    finish_reason: Reason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]


class BestOfSequence(Sequence):
    generated_text: str


class Details(Sequence):
    """Also `top_tokens` and `best_of_sequences`, where they are asked for."""

    speculation: Speculation


class Generated(BaseModel):
    """`details` come with it if asked for."""

    generated_text: str


class GeneratedList(RootModel[list[Generated]]):
    """What / answers: a list of one."""


class StreamDetails(BaseModel):
    finish_reason: Reason
    generated_tokens: int
    input_length: int
    seed: int | None
    speculation: Speculation


class StreamedToken(BaseModel):
    """The last one carries the whole text, and the details if asked for. index: from 1."""

    index: int
    token: Token
    generated_text: str | None
    details: StreamDetails | None


class Info(BaseModel):
    model_id: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    version: str


class PlacedToken(BaseModel):
    """start, stop: where it stands in the text, in characters."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokenized(BaseModel):
    tokenize_response: list[PlacedToken]
    templated_text: str
