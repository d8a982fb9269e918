"""CallParser: finds tool calls in an answer's text as it arrives; tool_forms.py has one for each form models write.

Text goes in as it comes, parts come out as soon as they are certain, the same for every way of cutting the text.
Nothing is lost: what begins like a call and turns out to be none is content. Only blanks beside a call are dropped,
since they belong to the markup.
"""

import re
import secrets
from collections.abc import Callable, Container
from enum import Enum
from typing import ClassVar

from server.text.answer_parts import CallArguments, CallStart, Content, Part, joined
from server.text.call_reader import CallReader, CallState
from server.text.held import first_of, held

_FENCE = "```json"
_BARE = re.compile(r"\s*(?:```(?:json)?\s*)?(?=\{)")


class Mode(Enum):
    START = "start"  # nothing but blanks so far, or but calls that were not announced
    CONTENT = "content"
    OPENED = "opened"  # behind a marker
    READING = "reading"  # inside a call
    CLOSED = "closed"  # behind a call, where the form may go on


class CallParser:
    """names: the functions that can be called. most_calls: further ones are left out (parallel_tool_calls: false)."""

    markers: ClassVar[tuple[str, ...]]  # what announces calls
    markup: ClassVar[tuple[str, ...]]  # those, and what else the form writes that a tokenizer may have as a token
    closing: ClassVar[str] = ""  # what ends each call, if anything does
    bare: ClassVar[bool] = False  # whether an answer may also begin with a call unannounced, fenced as code or not

    def __init__(self, names: Container[str], most_calls: int | None = None) -> None:
        self._names = names
        self._most_calls = most_calls
        self._mode = Mode.START if self.bare else Mode.CONTENT
        self._text = ""  # not read yet
        self._end = 0  # of that, in characters of the answer
        self._raw: list[str] = []  # read since the call's beginning, shown if it turns out to be none
        self._blanks: list[Content] = []  # behind the content so far, shown if more content follows
        self._spoken = False  # whether there was content
        self._reader: CallReader | None = None
        self._unannounced = False  # whether the call being read began without a marker
        self._fenced = False  # whether it stands in a fence
        self._announced = False  # whether the call being read has been passed on
        self._parts: list[Part] = []
        self.calls = 0  # passed on so far

    def feed(self, text: str, start: int | None = None) -> list[Part]:
        """What is certain now. start: where in the answer the text stands, if not behind what was fed before."""
        self._text += text
        self._end = len(text) + (self._end if start is None else start)
        self._run(last=False)
        return self._take()

    def finish(self, cut_short: bool = False) -> list[Part]:
        """The answer has ended. cut_short: not because the model was done, so that an announced call whose beginning
        is all there is would have become one; that is not shown."""
        if cut_short and self._mode is Mode.OPENED:
            self._drop()
        self._run(last=True)
        if self._reader is not None:
            self._reader.finish()
            self._pass_on(self._reader)
            if cut_short and not self._unannounced and not self._reader.started:
                self._drop()
            elif not self._reader.started:
                self._give_up()
        rest, self._text = "".join(self._raw) + self._text, ""
        self._say(rest)
        if not self.calls:
            self._parts += self._blanks
        return self._take()

    def _take(self) -> list[Part]:
        parts, self._parts = joined(self._parts), []
        return parts

    def _run(self, last: bool) -> None:
        step: dict[Mode, Callable[[bool], bool]] = {
            Mode.START: self._start,
            Mode.CONTENT: self._content,
            Mode.OPENED: self._opened,
            Mode.READING: lambda _last: self._read(),
            Mode.CLOSED: self._closed,
        }
        while self._text and step[self._mode](last):
            pass

    def _start(self, last: bool) -> bool:
        """At the beginning, where a call may stand unannounced, in a fence or not. Each step returns whether to go on
        with what is left."""
        opening = _BARE.match(self._text)
        if opening is not None:
            self._unannounced, self._fenced = True, "`" in opening[0]
            self._raw.append(opening[0])
            self._text = self._text[opening.end() :]
            self._begin(CallReader(self._names, bare=True))
            return True
        start = self._text.lstrip()
        if not last and (_FENCE.startswith(start.rstrip()) or start.rstrip() == _FENCE[:3]):
            return False
        self._mode = Mode.CONTENT
        self._unannounced = False
        return True

    def _content(self, last: bool) -> bool:
        found = first_of(self._text, self.markers)
        if found is None:
            certain = len(self._text) - (0 if last else held(self._text, self.markers))
            self._say(self._take_text(certain))
            return False
        start, marker = found
        self._say(self._take_text(start))
        self._text = self._text[len(marker) :]
        self._raw = [marker]
        self._mode = Mode.OPENED
        return True

    def _opened(self, last: bool) -> bool:
        """Behind a marker: begin a call, give up, or wait for more text (False)."""
        self._begin(CallReader(self._names))
        return True

    def _closed(self, last: bool) -> bool:
        """Behind a call: begin another, go back to content, or wait for more text (False)."""
        self._mode = Mode.CONTENT
        return True

    def _begin(self, reader: CallReader) -> None:
        self._reader, self._announced = reader, False
        self._mode = Mode.READING

    def _read(self) -> bool:
        reader = self._reader
        assert reader is not None
        end = reader.feed(self._text)
        self._raw.append(self._text[:end])
        self._text = self._text[end:]
        self._pass_on(reader)
        if reader.state is CallState.MALFORMED:
            self._give_up()
        elif reader.state is CallState.CLOSED:
            self._reader = None
            self._mode = Mode.CLOSED
        return bool(self._text)

    def _pass_on(self, reader: CallReader) -> None:
        if not reader.started:
            return
        self._raw.clear()
        if not self._announced:
            self._announced = True
            self.calls += 1
            if self._counts():
                self._parts.append(CallStart(self.calls - 1, self._new_id(), str(reader.name)))
        text = reader.take()
        if text and self._counts():
            self._parts.append(CallArguments(self.calls - 1, text))

    def _counts(self) -> bool:
        return self._most_calls is None or self.calls <= self._most_calls

    def _drop(self) -> None:
        """Forget what has been read of a call, and what is behind it."""
        self._raw.clear()
        self._text = ""

    def _give_up(self) -> None:
        """It was no call: its text is content."""
        self._reader = None
        self._mode = Mode.CONTENT
        raw, self._raw = "".join(self._raw), []
        self._say(raw)

    def _say(self, text: str) -> None:
        """The text that was read last is content, but for the blanks at its end, which may turn out to stand beside
        a call."""
        start = self._end - len(self._text) - len(text)
        body = text.rstrip()
        if body:
            end = start + len(body)
            if self.calls and not self._spoken:
                self._blanks, body = [], body.lstrip()
            self._parts += [*self._blanks, Content(body, end - len(body))]
            self._blanks, self._spoken = [], True
            start, text = end, text[end - start :]
        if text:
            self._blanks.append(Content(text, start))

    def _take_text(self, count: int) -> str:
        text, self._text = self._text[:count], self._text[count:]
        return text

    def _skip_blanks(self, raw: bool = False) -> None:
        start = self._text.lstrip()
        blanks = self._text[: len(self._text) - len(start)]
        if raw:
            self._raw.append(blanks)
        self._text = start

    def _new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"
