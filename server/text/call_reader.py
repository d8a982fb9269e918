"""CallReader: one tool call, `{"name": ..., "arguments": {...}}`, read character by character as it is written.

What small models get wrong where nothing is lost by understanding it is understood: keys in any order and further
keys, `parameters` for `arguments`, arguments written as a string that holds JSON, doubled braces (`{{"name": ...}}`,
which the templates of some published models show them), missing last braces. What cannot be a call is malformed,
and the caller shows its text instead.

A call has started once its name and the beginning of its arguments are known; from there on the arguments are passed
on as they are written, valid JSON or not, as OpenAI's API does.
"""

import json
import string
from collections.abc import Container, Generator
from enum import Enum

_BLANKS = " \t\r\n"
_NAME_KEYS = ("name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters")
_BARE_KEYS = (*_NAME_KEYS, *_ARGUMENT_KEYS, "type", "id")
# All that JSON, or what models take for it, has outside of strings; no tag that closes a call is among it.
_JSON_CHARACTERS = frozenset(_BLANKS + string.ascii_letters + string.digits + "{}[],:+-._'")

_Machine = Generator[None, str, str]  # takes characters ("" at the end), returns one that it did not want, or ""


class CallState(Enum):
    READING = "reading"
    CLOSED = "closed"
    MALFORMED = "malformed"


class _BrokenError(Exception):
    """The last character cannot stand where it does."""


class CallReader:
    """names: the functions there are; another name is malformed. bare: nothing announced the call, so that only its
    keys tell it from other JSON; arguments missing or unusual keys are malformed too. name: where it is known
    beforehand, and what is read is the arguments' object alone."""

    def __init__(self, names: Container[str], bare: bool = False, name: str | None = None) -> None:
        self._names = names
        self._bare = bare
        self.name = name
        self.state = CallState.READING
        self.started = False
        self._begun = False  # arguments
        self._out: list[str] = []
        self._machine = self._read_call() if name is None else self._read_arguments_alone()
        next(self._machine)

    def feed(self, text: str, start: int = 0) -> int:
        """Read on from text[start]; returns where it stopped, which is the end unless the call is over there."""
        for position in range(start, len(text)):
            unwanted = self._send(text[position])
            if unwanted is not None:
                return position if unwanted else position + 1
        return len(text)

    def finish(self) -> None:
        """Nothing follows."""
        self._send("")

    def take(self) -> str:
        """The arguments' text since the last call; nothing before the call has started."""
        if not self.started:
            return ""
        text = "".join(self._out)
        self._out.clear()
        return text

    def _send(self, character: str) -> str | None:
        """None while reading goes on; at the end the character if it was not wanted, else ""."""
        if self.state is not CallState.READING:
            return character
        try:
            self._machine.send(character)
            return None
        except StopIteration as end:
            self.state = CallState.CLOSED
            return str(end.value)
        except _BrokenError:
            self.state = CallState.CLOSED if self.started else CallState.MALFORMED
            return character

    def _read_arguments_alone(self) -> _Machine:
        return (yield from self._arguments((yield from _nonblank())))

    def _read_call(self) -> _Machine:
        if (yield from _nonblank()) != "{":
            raise _BrokenError
        character = yield from _nonblank()
        doubled = character == "{"
        if doubled:
            character = yield from _nonblank()
        while character != "}":
            character = yield from self._member(character)
            if character == ",":
                character = yield from _nonblank()
            elif character != "}":
                raise _BrokenError
        self._close()
        if not doubled:
            return ""
        character = yield
        return "" if character == "}" else character

    def _member(self, character: str) -> _Machine:
        """`"key": value`, from its first character; returns the first one behind it that is not blank."""
        if character != '"':
            raise _BrokenError
        key: list[str] = []
        yield from _string(key)
        if (yield from _nonblank()) != ":":
            raise _BrokenError
        character = yield from _nonblank()
        name = _loads("".join(key))
        if self._bare and name not in _BARE_KEYS:
            raise _BrokenError
        if name in _ARGUMENT_KEYS and not self._begun:
            following = yield from self._arguments(character)
        else:
            value: list[str] = []
            following = yield from _value(character, value)
            if name in _NAME_KEYS and self.name is None:
                self._take_name(_loads("".join(value)))
        return following if following and following not in _BLANKS else (yield from _nonblank())

    def _arguments(self, character: str) -> _Machine:
        self._begun = True
        if character == "{":
            self.started = self.name is not None
            return (yield from _container(character, self._out))
        value: list[str] = []
        following = yield from _value(character, value)
        self._out.append(_as_object("".join(value)))
        self.started = self.name is not None
        return following

    def _take_name(self, name: object) -> None:
        if not isinstance(name, str) or name not in self._names:
            raise _BrokenError
        self.name = name
        self.started = self._begun

    def _close(self) -> None:
        if self.name is None or (self._bare and not self._begun):
            raise _BrokenError
        if not self._begun:
            self._out.append("{}")
        self.started = True


def _nonblank() -> _Machine:
    character = yield
    while character and character in _BLANKS:
        character = yield
    return character


def _value(first: str, kept: list[str]) -> _Machine:
    """Any JSON value; returns the character behind a number or word, which is known only by it."""
    if first == '"':
        yield from _string(kept)
        return ""
    if first and first in "{[":
        return (yield from _container(first, kept))
    character = first
    while character and character in _JSON_CHARACTERS and character not in _BLANKS and character not in ",{}[]:":
        kept.append(character)
        character = yield
    if not kept or not character:
        raise _BrokenError
    return character


def _string(kept: list[str]) -> _Machine:
    """A string, its opening quote read already."""
    kept.append('"')
    escaped = False
    while True:
        character = yield
        if not character:
            raise _BrokenError
        kept.append(character)
        if character == '"' and not escaped:
            return ""
        escaped = character == "\\" and not escaped


def _container(first: str, kept: list[str]) -> _Machine:
    """An object or list up to its end, of a doubled one (`{{...}}`) one brace of each two."""
    kept.append(first)
    depth, doubled, fresh = 1, False, first == "{"
    while depth:
        character = yield
        if character == '"':
            yield from _string(kept)
        elif not character or character not in _JSON_CHARACTERS:
            raise _BrokenError
        elif character == "{" and fresh:  # never valid, so nothing else can be meant
            doubled = True
        else:
            kept.append(character)
            depth += (character in "{[") - (character in "}]")
        fresh = fresh and character in _BLANKS
    if not doubled:
        return ""
    character = yield
    return "" if character == "}" else character


def _as_object(text: str) -> str:
    """Arguments that are no object themselves: null is none, a string may hold the object."""
    value = _loads(text)
    if value is None and text == "null":
        return "{}"
    if isinstance(value, str) and isinstance(_loads(value), dict):
        return value
    raise _BrokenError


def _loads(text: str) -> object:
    """The value, or None for what is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
