"""TextBridge: how a draft model with another tokenizer reads the target's texts, and how its drafts come back.

Both ways lead through text. What stands for no text, a control token, is crossed by name: `<|im_end|>` is the draft
model's token of that name if it has one; the target's own end token is the draft's, whatever their names; the start
token gives way to the draft's; any other is read as the characters of its name.

Back, the end of the known text is encoded together with what was drafted, so that words are cut as the target cuts
them, and the tokens behind the seam are the drafts:

    known      ... "return" " a"       drafted   " +" " b" "\\n"
    encoded    ... "return" " a" | " +" " b" "\\n"

Where no token begins at the seam (known "a", drafted "b", and the target has "ab") there is nothing to propose: the
target has just decided against that token.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from core.drafters.bridge import Crossed
from server.text.plain_encoder import PlainEncoder
from server.text.reading import TextReading, Way, whole_characters
from server.text.spelling import Spelling
from server.text.token_bytes import TokenBytes


class TextBridge:
    """Of one pair of models; may be used for many sequences, one at a time. Bridge in core.drafters.bridge."""

    window = 24  # a few words, whose cuts do not depend on more

    def __init__(self, target: Spelling, draft: Spelling) -> None:
        """A second or two for large vocabularies."""
        self._target, self._draft = PlainEncoder(target.tokenizer), PlainEncoder(draft.tokenizer)
        self._target_bytes, self._draft_bytes = target.token_bytes, draft.token_bytes
        self._way = _way(target, draft, self._draft)
        self._back = _back(target, draft, self._way)
        self.closing = frozenset(self._back)
        ids = range(draft.vocab_size)
        self.unusable = tuple(i for i in ids if not draft.token_bytes[i] and i not in self.closing)

    def read(self) -> TextReading:
        return TextReading(self._way)

    def cross(self, known: Sequence[int], drafted: Sequence[int]) -> list[Crossed]:
        said, ends, last = bytearray(), [], None
        for token in drafted:
            if token in self._back:
                last = self._back[token]
                break
            said += self._draft_bytes[token]
            ends.append(len(said))
        whole, known_bytes = _whole_part(bytes(said)), self._known_bytes(known)
        unread = whole_characters(known_bytes)[1]  # of a character that the draft model has written anew
        if not whole.startswith(unread):
            return []
        rest = whole[len(unread) :]
        found, reached = self._encoded(known_bytes, rest, [end - len(unread) for end in ends])
        if last is not None and reached == len(rest) and len(whole) == len(said):
            found.append(Crossed(last, len(ends) + 1))
        return found

    def _known_bytes(self, known: Sequence[int]) -> bytes:
        """Of the last tokens, as far back as no control token stands between."""
        parts: list[bytes] = []
        for token in reversed(known[-self.window :]):
            if not (data := self._target_bytes[token]):
                break
            parts.append(data)
        return b"".join(reversed(parts))

    def _encoded(self, known: bytes, said: bytes, ends: list[int]) -> tuple[list[Crossed], int]:
        """What is said behind known bytes, in the target's tokens, and how many of its bytes they are. ends: of each
        drafted token within what is said."""
        text, begin = _characters(known, said)
        seam, at = len(known) - begin, 0
        if len(text) <= seam:
            return [], 0
        ids = self._target.encode(text.decode())
        if b"".join(self._target_bytes[token] for token in ids) != text:
            return [], 0  # a tokenizer that normalises has changed it
        found: list[Crossed] = []
        for token in ids:
            at_seam = at == seam
            at += len(self._target_bytes[token])
            if found or at_seam:
                found.append(Crossed(token, bisect_left(ends, at - seam) + 1))
        return (found, at - seam) if found else ([], 0)


def _whole_part(said: bytes) -> bytes:
    """Up to the first byte that makes no character."""
    try:
        said.decode()
    except UnicodeDecodeError as error:
        return said[: error.start]
    return said


def _characters(known: bytes, said: bytes) -> tuple[bytes, int]:
    """The longest run of whole characters, all valid, that ends with what is said, itself such a run but for the end
    of a character begun in known; and where in both it begins."""
    data, begin = known + said, 0
    while True:
        try:
            data[begin:].decode()
            return data[begin:], begin
        except UnicodeDecodeError as error:
            begin += error.end


def _way(target: Spelling, draft: Spelling, encoder: PlainEncoder) -> Way:
    names = {name: index for index, name in _control_names(draft).items()}
    start = _start_ids(draft)
    controls: dict[int, int | bytes] = {}
    for index, name in _control_names(target).items():
        if name in names:
            controls[index] = names[name]
        elif index == target.tokenizer.eos_token_id and draft.tokenizer.eos_token_id is not None:
            controls[index] = int(draft.tokenizer.eos_token_id)
        else:
            controls[index] = name.encode()
    begin = target.tokenizer.bos_token_id
    dropped = begin if begin is not None and (start or not isinstance(controls.get(begin), int)) else None
    return Way(encoder, target.token_bytes, controls, start, dropped)


def _back(target: Spelling, draft: Spelling, way: Way) -> Mapping[int, int]:
    """The target's token for each control token of the draft model that has one."""
    crossed = {there: here for here, there in way.controls.items() if isinstance(there, int)}
    end = target.tokenizer.eos_token_id
    if end is not None:
        crossed = {index: int(end) for index in draft.eos_token_ids} | crossed
        if isinstance(there := way.controls.get(int(end)), int):
            crossed[there] = int(end)  # also where another of the target's has the name of the draft's end token
    return crossed


def _control_names(language: Spelling) -> dict[int, str]:
    tokens: TokenBytes = language.token_bytes
    return {index: name for index in sorted(language.control_token_ids) if (name := tokens.name(index))}


def _start_ids(language: Spelling) -> list[int]:
    """What the tokenizer puts before a text of its own accord."""
    tokenizer: Any = language.tokenizer
    plain = tokenizer.encode("a", add_special_tokens=False)
    whole = list(tokenizer.encode("a"))
    at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
    return whole[:at]
