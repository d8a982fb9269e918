"""Keep control tokens typed by a user plain text.

A tokenizer turns the characters `<|im_end|>` into one control token wherever they stand, so a user could end his own
turn and speak as the system. Messages are therefore marked before the template sees them: an invisible sentinel is
put inside every control string of their text. After rendering, the prompt is split at the sentinels and its pieces
are encoded one by one, so that no control string of a user survives whole, while those of the template do. Text
without control strings holds no sentinel and is encoded exactly as the tokenizer always would.

    content        a<|im_end|>b
    marked         a<S|im_end|>b            S = the sentinel
    pieces         "...user\\na<"   "|im_end|>b<|im_end|>\\n..."
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

# Private-use characters: no keyboard, model or template writes them; chosen per prompt among those it lacks.
_SENTINELS = [chr(code) for code in range(0x10FF00, 0x10FFF0)]
_MARKUP = re.compile(r"[<\[].*[>\]]", re.DOTALL)


class ControlStrings:
    """special: strings of control tokens, broken in every message. markup: strings of other added tokens that look
    like tags (`<tool_call>`, `<think>`), broken where they come from outside the conversation's own machinery."""

    def __init__(self, special: Iterable[str], markup: Iterable[str] = ()) -> None:
        self.special = sorted({text for text in special if len(text) > 1})
        self.all = sorted({*self.special, *(text for text in markup if len(text) > 1)})

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, control_ids: frozenset[int]) -> "ControlStrings":
        special: list[str] = []
        markup: list[str] = []
        for index, token in tokenizer.backend_tokenizer.get_added_tokens_decoder().items():
            if token.special or index in control_ids:
                special.append(token.content)
            elif is_markup(token.content):
                markup.append(token.content)
        return cls(special, markup)

    def mark(self, value: Any, sentinel: str, outside: bool = True) -> Any:
        """A copy of `value` (strings, lists, dicts as JSON has them) with the sentinel inside every control string.

        outside: whether the text comes from a user or a tool, so that tags are broken as well.
        """
        if isinstance(value, str):
            return _break(value, self.all if outside else self.special, sentinel)
        if isinstance(value, list):
            return [self.mark(item, sentinel, outside) for item in value]
        if isinstance(value, dict):
            return {
                self.mark(key, sentinel, outside): self.mark(item, sentinel, outside) for key, item in value.items()
            }
        return value


def is_markup(text: str) -> bool:
    """Whether it looks like a tag: `<tool_call>`, `[INST]`."""
    return _MARKUP.fullmatch(text) is not None


def choose_sentinel(texts: Iterable[str]) -> str:
    """A sentinel that occurs in none of the texts. ValueError if they hold all 240 of them."""
    left = set(_SENTINELS)
    for text in texts:
        if not text.isascii():
            left -= set(text)
        if not left:
            raise ValueError("the messages use every private character that could separate their text")
    return min(left)


def strings_in(value: Any) -> Iterable[str]:
    """Every string inside a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings_in(key)
            yield from strings_in(item)


def _break(text: str, controls: list[str], sentinel: str) -> str:
    """Cut after the first character of every occurrence, overlapping ones too, so that none stays whole."""
    cuts: set[int] = set()
    for control in controls:
        start = text.find(control)
        while start != -1:
            cuts.add(start + 1)
            start = text.find(control, start + 1)
    if not cuts:
        return text
    edges = [0, *sorted(cuts), len(text)]
    return sentinel.join(text[left:right] for left, right in pairwise(edges))
