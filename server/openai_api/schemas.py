"""Request bodies of OpenAI's dialect: what a client may say. Ranges that depend on the loaded model or on the
server's configuration are checked in parameters.py; keys that nobody knows are ignored, as clients send many.

Types are strict: "1", true and 1.0 are no integers, "yes" is no boolean, NaN is no number. null always means
"not given".
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from server.errors import invalid, unsupported
from server.openai_api.fields import (
    Content,
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


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class StreamOptions(BaseModel):
    """include_usage: a last chunk with the usage. continuous_usage_stats: usage so far in every chunk."""

    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(_Body):
    """What every endpoint that generates shares."""

    # Parts of other APIs that would change the answer; (values that ask for nothing special) are fine.
    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "prompt_embeds": (),
        "structured_outputs": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "use_beam_search": (False,),
        "prediction": (),
    }

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
        if self.draft_length == "adaptive":
            raise unsupported("draft_length", "'draft_length': 'adaptive' is")
        return self


class GenerationBody(SamplingBody):
    """What chat completions and completions share."""

    max_tokens: TokenCount | None = None
    n: int | None = Field(None, ge=1)
    stream_options: StreamOptions | None = None

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


class ChatMessage(BaseModel):
    """One turn. Content may be null only where an assistant called tools or refused."""

    model_config = ConfigDict(strict=True, extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _needs_content(self) -> "ChatMessage":
        if self.content is None and (self.role != "assistant" or not (self.tool_calls or self.refusal)):
            raise ValueError(f"a message of role '{self.role}' needs content")
        return self


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerationBody.REFUSED,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "audio": (),
        "modalities": (["text"],),
        "web_search_options": (),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "documents": ([],),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
    }

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: TokenCount | None = Field(None, description="wins over max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = Field(None, description="accepted; there are no tool calls to run in parallel")
    response_format: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = Field(None, description="only false: this server stores nothing")
    service_tier: Literal["auto", "default"] | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> "ChatBody":
        self._check_tools()
        kind = (self.response_format or {"type": "text"}).get("type")
        if kind in ("json_object", "json_schema"):
            raise unsupported("response_format", f"'response_format' of type '{kind}' is")
        if kind != "text":
            raise invalid(
                "'response_format.type' must be 'text', 'json_object' or 'json_schema'.", "response_format.type"
            )
        if self.store:
            raise unsupported("store", "Stored completions are")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
        if self.return_provenance and not self.logprobs:
            raise invalid(
                "'return_provenance' needs 'logprobs' to be true: it adds to its entries.", "return_provenance"
            )
        return self

    def _check_tools(self) -> None:
        choice = self.tool_choice
        named = isinstance(choice, dict) and choice.get("type") == "function"
        if choice not in (None, "none", "auto", "required") and not named:
            raise invalid("'tool_choice' must be 'none', 'auto', 'required' or a named function.", "tool_choice")
        # With "none" the model must answer in words, so the tools are not shown to it either.
        if choice == "required" or named:
            raise unsupported("tool_choice", "A 'tool_choice' other than 'none' is")
        if self.tools and choice != "none":
            raise unsupported("tools", "'tools' are")

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many alternatives each token's logprobs list; None for no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    DEFAULT_MAX_TOKENS: ClassVar[int] = 16

    prompt: Prompts
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_completion(self) -> "CompletionBody":
        if self.suffix:
            raise unsupported("suffix", "'suffix' is")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported("best_of", "A 'best_of' other than 'n' is")
        if self.echo and self.logprobs is not None:
            raise unsupported("echo", "'echo' together with 'logprobs' is")
        if self.return_provenance and self.logprobs is None:
            raise invalid("'return_provenance' needs 'logprobs': it adds to its entries.", "return_provenance")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return self.logprobs
