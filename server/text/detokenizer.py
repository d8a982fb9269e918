"""Detokenizer: bytes to text, a piece at a time, never splitting a character.

Invalid bytes become U+FFFD, as in a decode of the whole. Bytes of a character that is not complete yet are kept
back; if the answer ends there (max_tokens fell inside an emoji), they are dropped, streamed and not alike.
"""

import codecs


class Detokenizer:
    """Incremental UTF-8. feed(a) + feed(b) gives the same text as feed(a + b), for any split."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    @property
    def held(self) -> int:
        """How many bytes of an unfinished character are kept back (0 to 3)."""
        return len(self._decoder.getstate()[0])

    def close(self, more_follows: bool) -> str:
        """End of the text. more_follows: the answer was cut before bytes that do start a new character (a stop
        string), so that an unfinished one is known to be broken and shows as U+FFFD; otherwise it is dropped."""
        tail = self._decoder.decode(b"", final=True)
        return tail if more_follows else ""
