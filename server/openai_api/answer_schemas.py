"""The shapes of answers, for the OpenAPI document. Renderers write plain dicts; a test holds them against these."""

from typing import Any, Literal

from pydantic import BaseModel

from core.provenance import Provenance
from server.token_origin import Verification


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    """completion_tokens_details: of models that think aloud."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


class Speculation(BaseModel):
    """What speculation gained and what the verifier loosened. mean_accepted_length: tokens per verification round."""

    verifier: str
    drafter: str
    rounds: int
    draft_tokens: int
    accepted_tokens: int
    loosened_tokens: dict[str, int]
    bonus_tokens: int
    mean_accepted_length: float | None
    estimated_speedup: float | None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """provenance, verification: where `return_provenance` asks."""

    top_logprobs: list[TopLogprob]
    provenance: Provenance | None = None
    verification: Verification | None = None


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob] | None
    refusal: None


class _Envelope(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str


class AnsweredFunction(BaseModel):
    """arguments: JSON as the model wrote it."""

    name: str
    arguments: str


class AnsweredCall(BaseModel):
    id: str
    type: Literal["function"]
    function: AnsweredFunction


class ChatAnswerMessage(BaseModel):
    """content is null where the answer is tool calls alone. reasoning_content: what a model that thinks thought."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[AnsweredCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(_Envelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    speculation: Speculation


class ChatChunkChoice(BaseModel):
    """delta: what is new: `role` in the first, then `content`, `reasoning_content` or `tool_calls`."""

    index: int
    delta: dict[str, Any]
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatCompletionChunk(_Envelope):
    """The last one carries `speculation`, and `usage` where `stream_options.include_usage` asks for it."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]


class LegacyLogprobs(BaseModel):
    """Parallel lists, an entry a token; the first of an echoed prompt has no probability. The last two: where
    `return_provenance` asks; null for an echoed prompt's tokens."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    provenance: list[Provenance | None] | None = None
    verification: list[Verification | None] | None = None


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(_Envelope):
    """A stream's chunks have the same shape; `usage` and `speculation` are in whole answers and last chunks."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class Tokenized(BaseModel):
    """token_strs: only if asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(BaseModel):
    prompt: str


class TokenizerInfo(BaseModel):
    """Other special tokens have names of their own, as in tokenizer_config.json."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    model_max_length: int


class Version(BaseModel):
    version: str


class Health(BaseModel):
    """reason: why it does not serve, if it does not."""

    status: str
    reason: str | None = None
