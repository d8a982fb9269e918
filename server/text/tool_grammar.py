"""Grammars for forced tool calls: whatever a model would say, a grammar lets it write nothing but calls, in its own
form and with arguments that its function's schema allows.

Written in Lark as llguidance reads it. For one function of the form of Hermes, where the tags are tokens 7 and 8:

    start: calls
    calls: call ("\\n" call)*
    call: <[7]> "\\n" (function_0) "\\n" <[8]>
    function_0: "{\\"name\\": \\"get_weather\\", \\"arguments\\": " arguments_0 "}"
    arguments_0: %json {"type": "object", ...}
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from server.text.chat_format import ChatFormat
from server.text.schema_reading import readable
from server.text.tool_forms import HermesCalls, MistralCalls

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class CallableFunction(Protocol):
    """parameters: a JSON schema of an object; None or empty for none. strict: enforce it to the letter."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> dict[str, Any] | None: ...
    @property
    def strict(self) -> bool | None: ...


Tag = Callable[[str], str]


def calls_grammar(
    chat_format: ChatFormat,
    functions: Sequence[CallableFunction],
    parallel: bool,
    opened: bool,
    token_of: Callable[[str], int | None],
    json_options: Mapping[str, Any],
    or_answer: bool = False,
) -> str:
    """A call of one of the functions, or several if `parallel`, after reasoning where the model reasons.

    opened: whether the prompt ends inside the reasoning. token_of: the token that a tag is, None if it is text.
    json_options: llguidance's, for the arguments. or_answer: or else `@answer`, a grammar of its own.
    """
    rules = reasoned("(calls | @answer)" if or_answer else "calls", chat_format, opened, token_of)
    rules += _calls(chat_format, functions, parallel, lambda text: _spelt(text, token_of))
    for index, function in enumerate(functions):
        schema = _closed(readable(function.parameters or NO_PARAMETERS, not function.strict, []))
        options = {**json_options, "lenient": not function.strict}
        rules.append(f"arguments_{index}: %json {json.dumps({**schema, 'type': 'object', 'x-guidance': options})}")
    return "\n".join(rules) + "\n"


def reasoned(then: str, chat_format: ChatFormat, opened: bool, token_of: Callable[[str], int | None]) -> list[str]:
    """The rule `start` and those it needs: what `then` says, after reasoning where the model reasons."""
    reasoning = chat_format.reasoning
    if reasoning is None:
        return [f"start: {then}"]
    opening, closing = _spelt(reasoning.opening, token_of), _spelt(reasoning.closing, token_of)
    # A token ends the text before it; where the tag is text itself, the shortest match does.
    attribute = "[lazy]" if token_of(reasoning.closing) is None else ""
    start = f"thought BLANKS {then}" if opened else f"({opening} thought BLANKS)? {then}"
    return [f"start: {start}", f"thought{attribute}: /(.|\\n)*/ {closing}", "BLANKS: /\\n{0,2}/"]


def _spelt(tag: str, token_of: Callable[[str], int | None]) -> str:
    token = token_of(tag)
    return json.dumps(tag) if token is None else f"<[{token}]>"


def _calls(chat_format: ChatFormat, functions: Sequence[CallableFunction], parallel: bool, tag: Tag) -> list[str]:
    """The rule `calls` and those below it, down to each function's arguments."""
    if chat_format.form == "mistral" and chat_format.named_arguments:
        names = [f"{json.dumps(function.name)} {tag('[ARGS]')}" for function in functions]
        some = " | ".join(f"{name} arguments_{index}" for index, name in enumerate(names))
        return [f"calls: call{'+' if parallel else ''}", f"call: {tag(MistralCalls.markers[0])} ({some})"]
    separator = {"mistral": ", ", "llama3_json": "; "}.get(str(chat_format.form), "\n")
    several = f"call ({json.dumps(separator)} call)*" if parallel else "call"
    some = " | ".join(f"function_{index}" for index in range(len(functions)))
    if chat_format.form == "mistral":
        rules = [f'calls: {tag(MistralCalls.markers[0])} "[" {several} "]"', f"call: {some}"]
    elif chat_format.form == "llama3_json":
        rules = [f"calls: {several}", f"call: {some}"]
    else:
        opening, closing = tag(HermesCalls.markers[0]), tag(HermesCalls.closing)
        rules = [f"calls: {several}", f'call: {opening} "\\n" ({some}) "\\n" {closing}']
    key = "parameters" if chat_format.form == "llama3_json" else "arguments"
    for index, function in enumerate(functions):
        beginning = f'{{"name": {json.dumps(function.name)}, "{key}": '
        rules.append(f'function_{index}: {json.dumps(beginning)} arguments_{index} "}}"')
    return rules


_UNIONS = ("allOf", "anyOf", "oneOf", "$ref", "if")


def _closed(schema: Any) -> Any:
    """The schema without properties that it does not list, unless it asks for them: what it allows is a part of what
    it allowed before, and a model that is free to invent parameters often does not stop."""
    if not isinstance(schema, Mapping):
        return schema
    closed = dict(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(key), Mapping):
            closed[key] = {name: _closed(inner) for name, inner in schema[key].items()}
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    combined = any(key in schema for key in _UNIONS)
    if "properties" not in schema:
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                closed[key] = [_closed(inner) for inner in schema[key]]
    elif not combined and "patternProperties" not in schema:
        closed.setdefault("additionalProperties", False)
    return closed
