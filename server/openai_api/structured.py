"""What a request wants its answer to be: `response_format`, `structured_outputs` and the older `guided_*` fields.

They say the same in three dialects; at most one of them may be given.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from server.errors import ApiError, invalid, unsupported
from server.json_body import parse_json
from server.serving_config import Limits
from server.text.constraints import Constraint, ConstraintError, Constraints


class JsonSchemaFormat(BaseModel):
    """strict: refuse the request if the schema cannot be enforced to the letter, instead of enforcing what can be."""

    model_config = ConfigDict(strict=True, extra="ignore")
    name: str = Field(min_length=1, max_length=64)
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's; `schema` beside json_object is what llama.cpp and others take."""

    model_config = ConfigDict(strict=True, extra="ignore")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _check(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            param = "response_format.json_schema"
            raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        if self.type != "json_schema" and self.json_schema is not None:
            raise invalid("'response_format.json_schema' needs type 'json_schema'.", "response_format.json_schema")
        if self.type != "json_object" and self.schema_ is not None:
            raise invalid(
                "'response_format.schema' needs type 'json_object'; type 'json_schema' has its schema in "
                "'response_format.json_schema.schema'.",
                "response_format.schema",
            )
        return self


class StructuredOutputs(BaseModel):
    """vLLM's; exactly one of the fields. grammar: Lark as llguidance reads it, or GBNF."""

    model_config = ConfigDict(strict=True, extra="allow")
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> "StructuredOutputs":
        for name, value in (self.model_extra or {}).items():
            if value not in (None, False):
                raise unsupported(f"structured_outputs.{name}", f"'{name}' in 'structured_outputs' is")
        return self


@dataclass(frozen=True, slots=True)
class Wanted:
    """One field's wish. param: its name, to be blamed. kind: how to read value. lenient: a schema need not be enforced
    to the letter."""

    param: str
    kind: Literal["schema", "object", "regex", "choice", "grammar"]
    value: Any = None
    lenient: bool = False


class StructuredFields(BaseModel):
    """The part of a body that may constrain its answer."""

    GUIDED: ClassVar[tuple[tuple[str, Literal["schema", "regex", "choice", "grammar"]], ...]] = (
        ("guided_json", "schema"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
    )

    structured_outputs: StructuredOutputs | None = Field(None, description="as vLLM has it")
    guided_json: dict[str, Any] | str | None = Field(None, description="older form of structured_outputs.json")
    guided_regex: str | None = Field(None, description="older form of structured_outputs.regex")
    guided_choice: list[str] | None = Field(None, description="older form of structured_outputs.choice")
    guided_grammar: str | None = Field(None, description="older form of structured_outputs.grammar")

    @property
    def wishes(self) -> list[Wanted]:
        """Everything that would constrain the answer."""
        found = [Wanted(name, kind, getattr(self, name)) for name, kind in self.GUIDED]
        if (outputs := self.structured_outputs) is not None:
            prefix = "structured_outputs"
            found.append(Wanted(f"{prefix}.json", "schema", outputs.json_))
            found.append(Wanted(f"{prefix}.regex", "regex", outputs.regex))
            found.append(Wanted(f"{prefix}.choice", "choice", outputs.choice))
            found.append(Wanted(f"{prefix}.grammar", "grammar", outputs.grammar))
            found.append(Wanted(f"{prefix}.json_object", "object", outputs.json_object or None))
        return [wish for wish in found if wish.value is not None]


def wish_of(given: ResponseFormat | None) -> list[Wanted]:
    """What a response_format wants, if anything."""
    if given is None or given.type == "text":
        return []
    if given.json_schema is not None:
        param, lenient = "response_format.json_schema.schema", not given.json_schema.strict
        return [Wanted(param, "schema", given.json_schema.schema_, lenient)]
    if given.schema_ is not None:
        return [Wanted("response_format.schema", "schema", given.schema_)]
    return [Wanted("response_format", "object", True)]


def compile_wish(
    wishes: Sequence[Wanted], constraints: Constraints, limits: Limits, around: str | None
) -> tuple[Constraint, str] | None:
    """The constraint that a request asks for and the field that does; takes milliseconds, or more for big schemas.

    around: a Lark grammar of all that the model writes, in which the constraint is `@answer`.

    ApiError if there are several wishes, or the one is malformed, too big or beyond what can be enforced.
    """
    if not wishes:
        return None
    if len(wishes) > 1:
        names = " and ".join(f"'{wish.param}'" for wish in wishes[:2])
        raise invalid(f"Only one constraint may be given, got {names}.", wishes[1].param)
    wish = wishes[0]
    try:
        return _compile(wish, constraints, limits, around), wish.param
    except ConstraintError as error:
        raise invalid(f"Invalid value for '{wish.param}': {error}.", wish.param, "invalid_value") from error


def _compile(wish: Wanted, constraints: Constraints, limits: Limits, around: str | None) -> Constraint:
    match wish.kind:
        case "object":
            return constraints.json_object(around)
        case "schema":
            return constraints.json_schema(check_schema(wish.value, wish.param, limits), around, wish.lenient)
        case "choice":
            return constraints.choice(_checked_choices(wish, limits), around)
        case "regex":
            _check_size(wish.value, wish.param, limits)
            return constraints.regex(wish.value, around)
        case "grammar":
            _check_size(wish.value, wish.param, limits)
            return constraints.grammar(wish.value, around)


def check_schema(given: Any, param: str, limits: Limits) -> dict[str, Any]:
    """A JSON schema, as an object or as text that holds one. ApiError if it is none, too long or nested too deep."""
    if isinstance(given, str):
        _check_size(given, param, limits)
        try:
            given = parse_json(given.encode())
        except ApiError as error:
            raise invalid(f"'{param}' is not valid JSON.", param, "invalid_value") from error
    if not isinstance(given, dict):
        raise invalid(f"'{param}' must be a JSON object.", param, "invalid_value")
    if _deeper(given, limits.max_schema_depth):
        raise invalid(f"'{param}' may be nested at most {limits.max_schema_depth} levels deep.", param)
    _check_size(json.dumps(given, ensure_ascii=False), param, limits)
    return given


def _checked_choices(wish: Wanted, limits: Limits) -> list[str]:
    choices: list[str] = wish.value
    if not 1 <= len(choices) <= limits.max_choices or not all(choices):
        raise invalid(f"'{wish.param}' must be 1 to {limits.max_choices} strings, none of them empty.", wish.param)
    _check_size("".join(choices), wish.param, limits)
    return choices


def _check_size(text: str, param: str, limits: Limits) -> None:
    most = limits.max_constraint_bytes
    if len(text.encode("utf-8", "replace")) > most:
        raise invalid(f"'{param}' may have at most {most} bytes.", param)


def _deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested more than so many levels deep."""
    if not isinstance(value, dict | list):
        return False
    if levels == 0:
        return True
    return any(_deeper(item, levels - 1) for item in (value.values() if isinstance(value, dict) else value))
