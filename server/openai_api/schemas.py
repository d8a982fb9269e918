"""Request bodies of OpenAI's dialect: what a client may say. Ranges that depend on the loaded model or on the
server's configuration are checked in parameters.py; keys that nobody knows are ignored, as clients send many.

Types are strict: "1", true and 1.0 are no integers, "yes" is no boolean, NaN is no number. null always means
"not given".
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from server.errors import invalid, unsupported
from server.openai_api import refused
from server.openai_api.fields import (
    LogitBias,
    Penalty,
    Priority,
    Probability,
    Prompts,
    RepetitionPenalty,
    Seed,
    StopStringsField,
    Temperature,
    TokenCount,
)
from server.openai_api.messages import ChatMessage
from server.openai_api.structured import ResponseFormat, StructuredFields, Wanted, wish_of
from server.openai_api.tools import Tool


class _Body(StructuredFields):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class StreamOptions(BaseModel):
    """include_usage: a last chunk with the usage. continuous_usage_stats: usage so far in every chunk."""

    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(_Body):
    """What every endpoint that generates shares."""

    REFUSED: ClassVar[refused.Refused] = refused.SHARED

    model: str
    temperature: Temperature | None = None
    top_p: Probability | None = None
    seed: Seed | None = None
    stop: StopStringsField | None = None
    stream: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    user: str | None = None

    top_k: int | None = Field(None, ge=-1, lt=2**31, description="0 and -1 are off")
    min_p: Probability | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    priority: Priority | None = Field(None, description="lower goes first")

    verifier: Any = Field(None, description='a name, or an object such as {"type": "fly", "window": 6}')
    drafter: str | None = None
    num_draft_tokens: TokenCount | None = None
    draft_length: Literal["fixed", "adaptive"] | None = None
    strict_prefix: int | None = Field(None, ge=0)
    return_provenance: bool | None = None

    @model_validator(mode="after")
    def _check_shared(self) -> "SamplingBody":
        given = self.model_extra or {}
        for name, harmless in self.REFUSED.items():
            if given.get(name) is not None and given[name] not in harmless:
                raise unsupported(name, f"'{name}' is")
        return self

    @property
    def token_limit(self) -> int | None:
        """The most tokens of an answer; None for as many as fit."""
        return None

    @property
    def alternatives(self) -> int | None:
        """How many alternatives each token's logprobs list; None for no logprobs."""
        return None

    @property
    def prompt_alternatives(self) -> int | None:
        """The same of the prompt's own tokens."""
        return None

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return 1

    @property
    def candidates(self) -> int:
        """Sequences generated for each prompt; the best of them are its answers."""
        return self.choices

    @property
    def without_effect(self) -> tuple[str, ...]:
        """What was asked of the model's manner, which no request can change."""
        return ()

    @property
    def shows_stop(self) -> bool:
        """Whether the stop string that ended an answer is part of its text."""
        return bool(self.include_stop_str_in_output)


class GenerationBody(SamplingBody):
    """What chat completions and completions share."""

    max_tokens: TokenCount | None = None
    n: int | None = Field(None, ge=1)
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = Field(None, description="what the answer must be")

    @property
    def wishes(self) -> list[Wanted]:
        return wish_of(self.response_format) + super().wishes

    @property
    def choices(self) -> int:
        return self.n or 1

    @model_validator(mode="after")
    def _check_stream_options(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise invalid("'stream_options' is only allowed when 'stream' is true.", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    REFUSED: ClassVar[refused.Refused] = refused.CHAT

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: TokenCount | None = Field(None, description="wins over max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = None
    tool_choice: Any = Field(None, description='"none", "auto", "required" or a named function')
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")
    metadata: dict[str, str] | None = None
    store: bool | None = Field(None, description="only false: this server stores nothing")
    service_tier: Literal["auto", "default"] | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> "ChatBody":
        if self.store:
            raise unsupported("store", "Stored completions are")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
        if self.return_provenance and not self.logprobs:
            raise invalid(
                "'return_provenance' needs 'logprobs' to be true: it adds to its entries.", "return_provenance"
            )
        return self

    @property
    def without_effect(self) -> tuple[str, ...]:
        given, usual = self.model_extra or {}, {"reasoning_effort": (None,), "verbosity": (None, "medium")}
        return tuple(name for name, values in usual.items() if given.get(name) not in values)

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    REFUSED: ClassVar[refused.Refused] = refused.COMPLETIONS
    DEFAULT_MAX_TOKENS: ClassVar[int] = 16

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, description="0 with echo: just the prompt, with its logprobs if asked")
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool | None = Field(None, description="with logprobs: the prompt's tokens are listed as well")
    suffix: str | None = None
    best_of: int | None = Field(None, ge=1, description="so many are generated, the n likeliest per token are answered")

    @model_validator(mode="after")
    def _check_completion(self) -> "CompletionBody":
        if self.suffix:
            raise unsupported("suffix", "'suffix' is")
        if self.candidates < self.choices:
            raise invalid(f"'best_of' must be at least 'n', got {self.best_of} of {self.n}.", "best_of")
        if self.candidates > self.choices and self.stream:
            raise invalid("'best_of' cannot be streamed: which answers are best is known at the end.", "best_of")
        if self.return_provenance and self.logprobs is None:
            raise invalid("'return_provenance' needs 'logprobs': it adds to its entries.", "return_provenance")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def prompt_alternatives(self) -> int | None:
        return self.logprobs if self.echo else None

    @property
    def candidates(self) -> int:
        return self.choices if self.best_of is None else self.best_of
