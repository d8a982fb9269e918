"""ReasoningSplitter: takes what a model thinks, `<think>...</think>` before its answer, out of the answer.

Only at the beginning: later the tags are words like any other. Where the template has opened the tag in the prompt
already, the answer begins inside.
"""

from dataclasses import dataclass
from enum import Enum

from server.text.answer_parts import Content, Part, Reasoning
from server.text.held import held


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    opening: str
    closing: str

    @property
    def tags(self) -> frozenset[str]:
        return frozenset({self.opening, self.closing})


THINK_TAGS = (ReasoningTags("<think>", "</think>"), ReasoningTags("[THINK]", "[/THINK]"))


class _Where(Enum):
    BEFORE = 1
    INSIDE = 2
    BEHIND = 3


class ReasoningSplitter:
    """Incremental. Blanks around the reasoning belong to the markup and are not shown."""

    def __init__(self, tags: ReasoningTags, opened: bool) -> None:
        self._tags = tags
        self._where = _Where.INSIDE if opened else _Where.BEFORE
        self._text = ""  # not certain yet
        self._fed = 0  # characters
        self._began = False  # whether any reasoning, or any content behind it, has been shown

    def feed(self, text: str) -> list[Part]:
        """Reasoning and content that are certain now."""
        self._text += text
        self._fed += len(text)
        parts: list[Part] = []
        if self._where is _Where.BEFORE:
            self._open(parts)
        if self._where is _Where.INSIDE:
            self._think(parts)
        if self._where is _Where.BEHIND:
            self._answer(parts)
        return parts

    def finish(self) -> list[Part]:
        """The end of the answer: what was held back is shown as what it looks like so far."""
        text, self._text = self._text, ""
        if self._where is _Where.BEFORE:
            return [self._content(text)] if text else []
        if self._where is _Where.INSIDE:
            text = text.rstrip()
            return [Reasoning(text)] if text else []
        return []

    def _open(self, parts: list[Part]) -> None:
        start = self._text.lstrip()
        if start.startswith(self._tags.opening):
            self._text = start[len(self._tags.opening) :]
            self._where = _Where.INSIDE
        elif not self._tags.opening.startswith(start):
            parts.append(self._content(self._text))
            self._text = ""
            self._where = _Where.BEHIND
            self._began = True

    def _think(self, parts: list[Part]) -> None:
        if not self._began:
            self._text = self._text.lstrip()
        before, closing, behind = self._text.partition(self._tags.closing)
        if closing:
            shown, self._text = before.rstrip(), behind
            self._where = _Where.BEHIND
        else:
            certain = self._text[: len(self._text) - held(self._text, (self._tags.closing,))]
            shown = certain.rstrip()
            self._text = self._text[len(shown) :]
        if shown:
            parts.append(Reasoning(shown))
            self._began = True
        if closing:
            self._began = False

    def _answer(self, parts: list[Part]) -> None:
        text = self._text if self._began else self._text.lstrip()
        self._text = ""
        if text:
            parts.append(self._content(text))
            self._began = True

    def _content(self, text: str) -> Content:
        """What was fed last."""
        return Content(text, self._fed - len(text))
