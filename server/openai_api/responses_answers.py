"""The shapes of /v1/responses, for the OpenAPI document; see answer_schemas.py."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from core.provenance import Provenance
from server.openai_api.answer_schemas import Speculation
from server.token_origin import Verification

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputTopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class OutputLogprob(OutputTopLogprob):
    """provenance, verification: where `return_provenance` asks."""

    top_logprobs: list[OutputTopLogprob]
    provenance: Provenance | None = None
    verification: Verification | None = None


class OutputText(BaseModel):
    """logprobs is empty unless `include` asks for them; annotations always is."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[OutputLogprob]


class OutputMessage(BaseModel):
    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(BaseModel):
    """What a model that thinks thought, in full; there are no summaries."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class FunctionCallItem(BaseModel):
    """arguments: JSON as the model wrote it. call_id: what the function_call_output must name."""

    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class InputTokensDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(BaseModel):
    code: str
    message: str


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseAnswer(BaseModel):
    """Beside these fields it repeats the request's. A finished answer has `usage` and `speculation` as well."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputMessage | ReasoningItem | FunctionCallItem]
    store: Literal[False]


class WholeResponse(ResponseAnswer):
    usage: ResponseUsage
    speculation: Speculation


class ResponseEvent(BaseModel):
    """One event of a stream, named by its type as well; which further fields it has depends on that.

    The first two and the last hold the `response` as it stands then; the last is response.completed,
    response.incomplete or response.failed, and no [DONE] follows it.
    """

    model_config = ConfigDict(extra="allow")

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: ResponseAnswer | None = None
