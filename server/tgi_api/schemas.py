"""Bodies of TGI's dialect, and their translation into what make_plan reads.

Whether an answer is sampled is decided as TGI decides it: if `do_sample` says so, or a temperature other than 1,
top_k or top_p is given. The fields of our own (verifier, drafter, ...) stand among the parameters.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator

from server.errors import from_validation, invalid, unsupported
from server.openai_api.fields import (
    Penalty,
    Probability,
    RepetitionPenalty,
    StopStringsField,
    Temperature,
    TokenCount,
)
from server.openai_api.messages import ChatMessage
from server.openai_api.schemas import SamplingBody
from server.openai_api.structured import Wanted
from server.openai_api.tools import Tool

Seed = Annotated[int, Field(ge=0, lt=2**64)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Grammar(BaseModel):
    """What the answer must be: a JSON schema (as json_schema: in an object's field `schema`), or a regular
    expression."""

    model_config = ConfigDict(strict=True, extra="ignore")
    type: Literal["json", "regex", "json_schema"]
    value: dict[str, Any] | str

    @model_validator(mode="after")
    def _check(self) -> "Grammar":
        if self.type == "regex" and not isinstance(self.value, str):
            raise ValueError("the value of a regex must be a string")
        if self.type == "json_schema" and not (isinstance(self.value, dict) and "schema" in self.value):
            raise ValueError("the value of a json_schema must be an object with a 'schema'")
        return self

    def wish(self) -> Wanted:
        if self.type == "regex":
            return Wanted("grammar", "regex", self.value)
        if self.type == "json_schema" and isinstance(self.value, dict):
            return Wanted("grammar", "schema", self.value["schema"])
        return Wanted("grammar", "schema", self.value)


class GenerateParameters(_Body):
    DEFAULT_MAX_NEW_TOKENS: ClassVar[int] = 100

    best_of: int | None = Field(None, ge=1)
    temperature: Temperature | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="0 and -1 are off")
    top_p: Probability | None = None
    typical_p: Annotated[float | None, WithJsonSchema({"enum": [1, None]})] = None
    do_sample: bool | None = None
    max_new_tokens: TokenCount | None = Field(None, description=f"{DEFAULT_MAX_NEW_TOKENS} if not given")
    return_full_text: bool | None = None
    stop: StopStringsField | None = None
    truncate: TokenCount | None = Field(None, description="only so many of the prompt's last tokens are used")
    watermark: Annotated[bool | None, WithJsonSchema({"enum": [False, None]})] = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: Seed | None = None
    top_n_tokens: int | None = Field(None, ge=0, le=20)
    grammar: Grammar | None = None
    adapter_id: Annotated[str | None, WithJsonSchema({"enum": ["", None], "description": "there are none"})] = None

    verifier: Any = Field(None, description='a name, or an object such as {"type": "fly", "window": 6}')
    drafter: str | None = None
    num_draft_tokens: TokenCount | None = None
    draft_length: Literal["fixed", "adaptive"] | None = None
    strict_prefix: int | None = Field(None, ge=0)
    return_provenance: bool | None = Field(None, description="each token says where it came from")

    @model_validator(mode="after")
    def _check(self) -> "GenerateParameters":
        if self.typical_p not in (None, 1.0):
            raise unsupported("typical_p", "'typical_p' is")
        if self.watermark:
            raise unsupported("watermark", "'watermark' is")
        if self.adapter_id:
            raise unsupported("adapter_id", "'adapter_id' is")
        return self

    @property
    def samples(self) -> bool:
        filters = bool(self.top_k and self.top_k > 0) or (self.top_p is not None and self.top_p < 1.0)
        return bool(self.do_sample) or filters or self.temperature not in (None, 1.0)


def _nullable(properties: dict[str, Any], name: str) -> None:
    properties[name] = {"anyOf": [properties[name], {"type": "null"}]}


class GenerateBody(_Body):
    """POST /generate, /generate_stream and /."""

    model_config = ConfigDict(json_schema_extra=lambda schema: _nullable(schema["properties"], "parameters"))

    inputs: str = Field(min_length=1)
    parameters: GenerateParameters = GenerateParameters()
    stream: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_given(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("parameters", ()) is None:
            return {key: value for key, value in given.items() if key != "parameters"}
        return given

    def check_streamed(self) -> None:
        """ApiError for what only a whole answer can tell."""
        if (self.parameters.best_of or 1) > 1:
            raise invalid("'best_of' must be 1 when tokens are streamed.", "best_of")
        if self.parameters.decoder_input_details:
            raise invalid("'decoder_input_details' must be false when tokens are streamed.", "decoder_input_details")

    def check_whole(self) -> None:
        """ApiError for what only listed tokens can tell, if none are listed."""
        if self.parameters.return_provenance and not self.parameters.details:
            raise invalid("'return_provenance' needs 'details': it adds to their tokens.", "return_provenance")
        if self.parameters.decoder_input_details and not self.parameters.details:
            raise invalid("'decoder_input_details' needs 'details': it adds to them.", "decoder_input_details")


class TextGeneration(SamplingBody):
    """A GenerateBody in the words of make_plan."""

    OWN: ClassVar[frozenset[str]] = frozenset({"model", "stream", "token_details", "prompt_details"})

    seed: Seed | None = None
    max_new_tokens: TokenCount
    best_of: TokenCount = 1
    token_details: int | None = None
    prompt_details: bool = False
    grammar: Grammar | None = None

    @classmethod
    def of(cls, body: GenerateBody, model: str, streamed: bool) -> "TextGeneration":
        """ApiError for what make_plan's own schema does not allow."""
        given = body.parameters
        # Fields that TGI does not have and OpenAI's dialect has (min_p, ...), and unknown ones, which get their hints.
        extras = {name: value for name, value in (given.model_extra or {}).items() if name not in cls.OWN}
        try:
            return cls._translated(given, model, streamed, extras)
        except ValidationError as error:
            raise from_validation(error) from None

    @classmethod
    def _translated(
        cls, given: GenerateParameters, model: str, streamed: bool, extras: dict[str, Any]
    ) -> "TextGeneration":
        temperature = 1.0 if given.temperature is None else given.temperature
        listed = given.details or streamed
        return cls(
            model=model,
            temperature=temperature if given.samples else 0.0,
            top_p=given.top_p,
            top_k=given.top_k,
            seed=given.seed,
            stop=given.stop,
            frequency_penalty=given.frequency_penalty,
            repetition_penalty=given.repetition_penalty,
            verifier=given.verifier,
            drafter=given.drafter,
            num_draft_tokens=given.num_draft_tokens,
            draft_length=given.draft_length,
            strict_prefix=given.strict_prefix,
            return_provenance=given.return_provenance,
            max_new_tokens=given.max_new_tokens or given.DEFAULT_MAX_NEW_TOKENS,
            best_of=given.best_of or 1,
            token_details=(given.top_n_tokens or 0) if listed else None,
            grammar=given.grammar,
            prompt_details=bool(given.details and given.decoder_input_details),
            **extras,
        )

    @property
    def token_limit(self) -> int:
        return self.max_new_tokens

    @property
    def alternatives(self) -> int | None:
        return self.token_details

    @property
    def prompt_alternatives(self) -> int | None:
        return 0 if self.prompt_details else None

    @property
    def candidates(self) -> int:
        return self.best_of

    @property
    def shows_stop(self) -> bool:
        return True

    @property
    def wishes(self) -> list[Wanted]:
        return [*super().wishes, *([] if self.grammar is None else [self.grammar.wish()])]


class ChatTokenizeBody(_Body):
    """POST /chat_tokenize."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[Tool] | None = None
    tool_choice: Any = None
