"""The body of POST /v1/responses. What OpenAI's endpoint stores, hosts or schedules is refused by name."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from server.errors import ApiError, invalid, shorten, unsupported
from server.openai_api import refused
from server.openai_api.fields import TokenCount
from server.openai_api.schemas import SamplingBody
from server.openai_api.structured import Wanted
from server.openai_api.tools import Function, Tool, allows_several

LOGPROBS = "message.output_text.logprobs"
# What agents ask for so that thoughts can be sent back: here they are in the answer as they are.
ENCRYPTED = "reasoning.encrypted_content"


def _input(value: Any) -> str | list[Any]:
    if not isinstance(value, str | list) or value == []:
        raise ValueError("must be a string or a list of one or more items")
    return value


Input = Annotated[
    str | list[Any],
    BeforeValidator(_input),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}),
]


def _tool_choice(value: Any) -> Any:
    if value in (None, "none", "auto", "required"):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function" and isinstance(value.get("name"), str):
        return value
    if kind is None or kind == "function":
        raise ValueError('must be \'none\', \'auto\', \'required\' or {"type": "function", "name": "..."}')
    raise unsupported("tool_choice", f"A 'tool_choice' of type {shorten(repr(kind), 40)} is")


ToolChoice = Annotated[
    Any,
    BeforeValidator(_tool_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required", None]},
                {
                    "type": "object",
                    "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
                    "required": ["type", "name"],
                },
            ]
        }
    ),
]


# Checked by hand, to say more than "must be null"; the OpenAPI document still tells what is accepted.
Nothing = Annotated[Any, WithJsonSchema({"type": "null"})]
OnlyFalse = Annotated[bool | None, WithJsonSchema({"enum": [False, None]})]


class _Options(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class TextFormat(_Options):
    """response_format of chat completions without its nesting; name, schema and what follows need json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, min_length=1, max_length=64)
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> "TextFormat":
        for field, value in (("name", self.name), ("schema", self.schema_)):
            param = f"text.format.{field}"
            if self.type == "json_schema" and value is None:
                raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
            if self.type != "json_schema" and value is not None:
                raise invalid(f"'{param}' needs type 'json_schema'.", param)
        return self

    @property
    def wishes(self) -> list[Wanted]:
        """What it wants of the answer, if anything."""
        if self.type == "text":
            return []
        if self.schema_ is None:
            return [Wanted("text.format", "object", True)]
        return [Wanted("text.format.schema", "schema", self.schema_, lenient=not self.strict)]


class TextOptions(_Options):
    """format: what the answer must be. verbosity changes nothing."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(_Options):
    """Changes nothing: a model that thinks does so as it was trained to, and shows its thoughts in full."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class FunctionTool(_Options):
    """A function, without the nesting of chat completions. The types of tools that OpenAI hosts are not there."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_tool(self) -> Tool:
        return Tool(type="function", function=Function(**self.model_dump(exclude={"type"})))


class ResponseStreamOptions(_Options):
    include_obfuscation: Literal[False] | None = None


class ResponsesBody(SamplingBody):
    """POST /v1/responses: one answer, of which nothing is kept."""

    REFUSED: ClassVar[refused.Refused] = refused.RESPONSES
    # Parameters of the other endpoints, which SDKs let through: ignoring them would answer another question.
    MOVED: ClassVar[dict[str, str]] = {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "functions": "tools",
        "function_call": "tool_choice",
        "logprobs": "include",
    }
    # What needs a store; null, false and absent are fine.
    STATEFUL: ClassVar[tuple[str, ...]] = ("previous_response_id", "conversation", "prompt", "background", "store")

    input: Input
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    include: list[Annotated[str, WithJsonSchema({"enum": [LOGPROBS, ENCRYPTED]})]] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["disabled"] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: TokenCount | None = Field(None, description="counts built-in tools, of which there are none")
    stream_options: ResponseStreamOptions | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    previous_response_id: Nothing = Field(None, description="this server stores nothing")
    conversation: Nothing = Field(None, description="this server stores nothing")
    prompt: Nothing = Field(None, description="this server stores nothing")
    background: OnlyFalse = Field(None, description="this server stores nothing")
    store: OnlyFalse = Field(None, description="this server stores nothing")

    @model_validator(mode="before")
    @classmethod
    def _check_moved(cls, given: Any) -> Any:
        # Before the fields, as a request meant for another endpoint lacks most of them.
        for name, here in cls.MOVED.items() if isinstance(given, dict) else ():
            if given.get(name) is not None:
                message = f"'{name}' is not a parameter of the Responses API; use '{here}'."
                raise ApiError(400, message, param=name, code="unsupported_parameter")
        return given

    @model_validator(mode="after")
    def _check_responses(self) -> "ResponsesBody":
        for name in self.STATEFUL:
            if getattr(self, name) not in (None, False):
                message = f"'{name}' needs stored answers, and this server stores nothing; send the whole conversation."
                raise invalid(message, name, "unsupported_parameter")
        for name in self.include or ():
            if name not in (LOGPROBS, ENCRYPTED):
                raise invalid(f"'include' may only name '{LOGPROBS}'.", "include", "unsupported_value")
        if self.top_logprobs and self.alternatives is None:
            raise invalid(f"'top_logprobs' needs '{LOGPROBS}' in 'include'.", "top_logprobs")
        if self.return_provenance and self.alternatives is None:
            raise invalid(f"'return_provenance' needs '{LOGPROBS}' in 'include'.", "return_provenance")
        if self.stream_options is not None and not self.stream:
            raise invalid("'stream_options' is only allowed when 'stream' is true.", "stream_options")
        return self

    @property
    def without_effect(self) -> tuple[str, ...]:
        wished = self.reasoning.model_dump(exclude_none=True) if self.reasoning is not None else {}
        names = [f"reasoning.{name}" for name in wished]
        verbose = self.text is not None and self.text.verbosity not in (None, "medium")
        return (*names, "text.verbosity") if verbose else tuple(names)

    @property
    def nested_tool_choice(self) -> Any:
        """tool_choice as chat completions write it."""
        choice = self.tool_choice
        return {"type": "function", "function": {"name": choice["name"]}} if isinstance(choice, dict) else choice

    @property
    def parallel(self) -> bool:
        """Whether an answer may hold several calls."""
        return allows_several(self.nested_tool_choice, self.parallel_tool_calls)

    @property
    def text_format(self) -> TextFormat:
        return (self.text.format if self.text is not None else None) or TextFormat(type="text")

    @property
    def wishes(self) -> list[Wanted]:
        return self.text_format.wishes + super().wishes

    @property
    def token_limit(self) -> int | None:
        return self.max_output_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None
