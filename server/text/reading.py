"""TextReading: a text that grows in the target's tokens, as the ids that the draft model's tokenizer makes of it.

Encoding all of it again each round would take ever longer, and the last word's tokens change as it grows. So the text
is cut into segments that are encoded by themselves: at the first space between two words behind 64 characters, where
no token of the usual tokenizers reaches across, or after 256 where none comes. Of a cut nothing depends but the text
before it, so the ids are the same in whatever pieces the text came. The last segment is open.

    "The quick brown ... jumps" | " over the lazy dog, and wh"
     settled                       open, encoded again with what comes next
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from server.text.plain_encoder import PlainEncoder
from server.text.token_bytes import TokenBytes

_LEAST, _MOST = 64, 256  # characters of a segment
_SEAM = re.compile(r"(?<=\S) (?=\S)")


@dataclass(frozen=True, slots=True)
class Way:
    """From the target's tokens to the draft model's. encoder: the draft model's. token_bytes: the target's. controls:
    what is read where a control token stands, an id of the draft model's or text. start: ids before every text.
    dropped: the target's token that is left out where it begins a text."""

    encoder: PlainEncoder
    token_bytes: TokenBytes
    controls: Mapping[int, int | bytes]
    start: list[int]
    dropped: int | None = None


class _End(NamedTuple):
    """Of what was read: the open segment, and bytes behind it that do not make a character yet."""

    segment: str = ""
    partial: bytes = b""


class TextReading:
    """Reading in core.drafters.bridge."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._end = _End()
        self._open: list[int] | None = []
        self.settled = list(way.start)
        self.taken = 0

    @property
    def open(self) -> list[int]:
        if self._open is None:
            self._open = self._way.encoder.encode(self._end.segment)
        return self._open

    def push(self, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        pieces, self._end = self._read(tokens)
        self.settled += self._ids(pieces)
        self.taken += len(tokens)
        self._open = None

    def ahead(self, tokens: Sequence[int]) -> list[int]:
        if not tokens:
            return self.open
        pieces, end = self._read(tokens)
        return self._ids(pieces) + self._way.encoder.encode(end.segment)

    def _read(self, tokens: Sequence[int]) -> tuple[list[str | int], _End]:
        """What these tokens settle, segments and control tokens of the draft model in order, and what is open then."""
        way, (segment, partial) = self._way, self._end
        pieces: list[str | int] = []
        run = bytearray(partial)
        if self.taken == 0 and tokens[0] == way.dropped:
            tokens = tokens[1:]
        for token in tokens:
            control = way.controls.get(token)
            if isinstance(control, int):
                closed, rest = _cut(segment + run.decode(errors="replace"))
                pieces += [*closed, rest, control]
                segment, run = "", bytearray()
            else:
                run += way.token_bytes[token] if control is None else control
        text, partial = whole_characters(run)
        closed, segment = _cut(segment + text)
        return [*pieces, *closed], _End(segment, partial)

    def _ids(self, pieces: Sequence[str | int]) -> list[int]:
        texts = [piece for piece in pieces if isinstance(piece, str)]
        encoded = iter(self._way.encoder.encode_all(texts) if texts else ())
        return [index for piece in pieces for index in ([piece] if isinstance(piece, int) else next(encoded))]


def whole_characters(data: bytes | bytearray) -> tuple[str, bytes]:
    """The text of whole characters, U+FFFD for bytes that make none, and the bytes of one that is not complete yet."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(bytes(data))
    return text, decoder.getstate()[0]


def _cut(text: str) -> tuple[list[str], str]:
    """Segments that are complete whatever follows, and the rest."""
    closed, start = [], 0
    while len(text) - start > _LEAST + 1:
        found = _SEAM.search(text, start + _LEAST, start + _MOST + 2)
        if found is None and len(text) - start < _MOST + 2:
            break
        end = start + _MOST if found is None else found.start()
        closed.append(text[start:end])
        start = end
    return closed, text[start:]
