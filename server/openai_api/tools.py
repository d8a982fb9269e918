"""Tools as a request brings them, and which of them its answer may or must call."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.errors import ApiError, invalid, shorten, unsupported
from server.serving_config import Limits

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Function(BaseModel):
    """parameters: a JSON schema of an object; absent or null for a function without parameters. strict: refuse the
    request if the schema cannot be enforced to the letter, instead of enforcing what can be."""

    model_config = ConfigDict(strict=True, extra="ignore")
    name: str = Field(json_schema_extra={"pattern": f"^{_NAME.pattern}$"})
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Only what was given; `strict` is none of the model's business."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What an answer has to do with tools. shown: what the model is told of, in the template's form. functions: those
    it may call. forced: it must call one. named: its one function was named by the request. parallel: it may make
    several calls; where a call is forced only if the request says so, since many a model that must call and may go on
    calling does not stop."""

    shown: tuple[dict[str, Any], ...]
    functions: tuple[Function, ...]
    forced: bool
    named: bool
    parallel: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)


def tool_use(
    tools: Sequence[Tool] | None, choice: Any, parallel: bool | None, limits: Limits, nested: bool = True
) -> ToolUse | None:
    """None where no tool is to be called: then the tools are not shown to the model either, so that it answers in
    words. ApiError for a choice or for tools that make no sense; nested: whether they came with their function in
    `function`, as in chat completions."""
    named = _named(choice)
    _check(tools or (), limits, ".function" if nested else "")
    if named is None and choice not in (None, "none", "auto", "required"):
        raise invalid("'tool_choice' must be 'none', 'auto', 'required' or a named function.", "tool_choice")
    if not tools:
        if named is not None or choice == "required":
            raise invalid("'tool_choice' is only allowed when 'tools' are specified.", "tool_choice")
        return None
    if choice == "none":
        return None
    functions = tuple(tool.function for tool in tools if named in (None, tool.function.name))
    if not functions:
        raise invalid(f"'tool_choice' names {shorten(repr(named), 80)}, which is not among 'tools'.", "tool_choice")
    return ToolUse(
        shown=tuple(tool.for_template() for tool in tools),
        functions=functions,
        forced=named is not None or choice == "required",
        named=named is not None,
        parallel=allows_several(choice, parallel),
    )


def allows_several(choice: Any, parallel: bool | None) -> bool:
    """Whether an answer may make several calls: see ToolUse."""
    return _named(choice) is None and (parallel is True if choice == "required" else parallel is not False)


def _named(choice: Any) -> str | None:
    """The function's name in {"type": "function", "function": {"name": ...}}."""
    if not isinstance(choice, dict):
        return None
    kind, function = choice.get("type"), choice.get("function")
    if kind in ("allowed_tools", "custom"):
        raise unsupported("tool_choice", f"A 'tool_choice' of type '{kind}' is")
    name = function.get("name") if isinstance(function, dict) else None
    if kind != "function" or not isinstance(name, str):
        raise invalid(
            "'tool_choice' must be 'none', 'auto', 'required' or "
            '{"type": "function", "function": {"name": "..."}}.',
            "tool_choice",
        )
    return name


def _check(tools: Sequence[Tool], limits: Limits, where: str) -> None:
    if len(tools) > limits.max_tools:
        raise invalid(f"'tools' may have at most {limits.max_tools} entries, got {len(tools)}.", "tools")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        function, path = tool.function, f"tools.{index}{where}"
        if not _NAME.fullmatch(function.name):
            raise _bad(function.name, f"{path}.name", "must be 1 to 64 letters, digits, underscores and dashes")
        if function.name in seen:
            raise _bad(function.name, f"{path}.name", "is there twice; each function needs a name of its own")
        seen.add(function.name)
        _check_parameters(function, f"{path}.parameters", limits)
    size = sum(len(json.dumps(tool.for_template(), ensure_ascii=False).encode()) for tool in tools)
    if size > limits.max_tools_bytes:
        raise invalid(f"'tools' may have at most {limits.max_tools_bytes} bytes as JSON, got {size}.", "tools")


def _check_parameters(function: Function, path: str, limits: Limits) -> None:
    parameters = function.parameters or {}
    if parameters.get("type", "object") != "object":
        raise _bad(function.name, path, 'must be a JSON schema of type "object"')
    if _depth(parameters) > limits.max_schema_depth:
        raise _bad(function.name, path, f"may nest at most {limits.max_schema_depth} levels deep")


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _bad(name: str, path: str, reason: str) -> ApiError:
    return invalid(f"Invalid value for '{path}' of the function {shorten(repr(name), 80)}: {reason}.", path)
