"""The input of POST /v1/responses as chat messages, for the model's template.

A conversation arrives as a list of items, in which an assistant's turn may be several: what it thought, what it said,
the functions that it called. They become one message, as templates expect:

    reasoning, message (assistant), function_call, function_call, function_call_output, ...
    -> assistant {reasoning_content, content, tool_calls: [., .]}, tool, ...

Nothing is stored here, so items must be given in full; a reference to one is refused.
"""

from collections.abc import Mapping
from typing import Any

from server.errors import ApiError, invalid, shorten, unsupported
from server.text.chat_template import Message

_ROLES = ("user", "assistant", "system", "developer")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


def to_messages(given: str | list[Any], instructions: str | None) -> list[Message]:
    """Messages with role and content (a string), and tool_calls, tool_call_id, reasoning_content where they belong.

    instructions come first, as the system. ApiError 400 naming the item and what is allowed.
    """
    messages: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    reader = _Reader(messages)
    for index, item in enumerate(given):
        reader.read(item, f"input.{index}")
    return reader.messages


class _Reader:
    """Reads items one after the other; `turn` is the assistant's message that further items may still join."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self._turn: Message | None = None
        self._thoughts: list[str] = []  # wait for the message or the call that they led to
        self._calls: set[str] = set()

    def read(self, item: Any, path: str) -> None:
        if not isinstance(item, dict):
            raise _wrong(path, "must be an object")
        match _type_of(item):
            case "message":
                self._message(item, path)
            case "function_call":
                self._call(item, path)
            case "function_call_output":
                self._output(item, path)
            case "reasoning":
                self._thoughts += _reasoning_of(item, path)
            case "item_reference":
                raise invalid(
                    f"'{path}' refers to a stored item, and this server stores nothing; send the item itself.",
                    path,
                    "unsupported_value",
                )
            case kind:
                shown = shorten(repr(kind), 60)
                raise invalid(
                    f"'{path}.type' {shown} is not supported; allowed: {', '.join(_ITEMS)}.",
                    f"{path}.type",
                    "unsupported_value",
                )

    def _message(self, item: Mapping[str, Any], path: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise _wrong(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
        message: Message = {"role": role, "content": _text_of(item.get("content"), f"{path}.content")}
        self._turn = message if role == "assistant" else None
        self._attach_thoughts(message)
        self.messages.append(message)

    def _call(self, item: Mapping[str, Any], path: str) -> None:
        call_id, name = (_string(item, key, path) for key in ("call_id", "name"))
        arguments = _string(item, "arguments", path)
        if self._turn is None:
            self._turn = {"role": "assistant", "content": ""}
            self.messages.append(self._turn)
        self._attach_thoughts(self._turn)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._turn.setdefault("tool_calls", []).append(call)
        self._calls.add(call_id)

    def _output(self, item: Mapping[str, Any], path: str) -> None:
        call_id = _string(item, "call_id", path)
        if call_id not in self._calls:
            raise invalid(
                f"'{path}.call_id' {shorten(repr(call_id), 60)} belongs to no function_call before it; this server "
                "stores nothing, so send the whole conversation.",
                f"{path}.call_id",
            )
        self._turn = None
        self._thoughts = []
        content = _text_of(item.get("output"), f"{path}.output")
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _attach_thoughts(self, message: Message) -> None:
        """Templates show the thoughts of the running turn and drop older ones, so they are handed over as they are."""
        if self._thoughts and message["role"] == "assistant":
            message["reasoning_content"] = "\n".join(
                [*filter(None, [message.get("reasoning_content")]), *self._thoughts]
            )
        self._thoughts = []


def _type_of(item: Mapping[str, Any]) -> Any:
    """An item's type; it may be left out of messages and of references."""
    kind = item.get("type")
    if kind is not None:
        return kind
    return "item_reference" if "id" in item and "role" not in item else "message"


def _text_of(content: Any, path: str) -> str:
    """A string as it is; parts joined by line breaks, as in chat completions."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(path, "must be a string or a list of text parts")
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            if isinstance(kind, str) and kind.startswith("input_"):
                raise unsupported(f"{path}.{index}", f"Parts of type {shorten(repr(kind), 40)} are")
            raise _wrong(f"{path}.{index}", "must be a part of type 'input_text' or 'output_text'")
        texts.append(_string(part, key, f"{path}.{index}"))
    return "\n".join(texts)


def _reasoning_of(item: Mapping[str, Any], path: str) -> list[str]:
    """The thoughts in full, or their summaries where there is nothing else; encrypted ones nobody here can read."""
    for field, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = item.get(field) or []
        if not isinstance(parts, list):
            raise _wrong(f"{path}.{field}", f"must be a list of parts of type '{kind}'")
        for index, part in enumerate(parts):
            if not isinstance(part, dict) or part.get("type") != kind:
                raise _wrong(f"{path}.{field}.{index}", f"must be a part of type '{kind}'")
        if parts:
            return [_string(part, "text", f"{path}.{field}.{index}") for index, part in enumerate(parts)]
    return []


def _string(item: Mapping[str, Any], key: str, path: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise _wrong(f"{path}.{key}", "must be a string")
    return value


def _wrong(path: str, reason: str) -> ApiError:
    return invalid(f"Invalid value for '{path}': {reason}.", path, "invalid_value")
