"""ReasoningCounter: how many of an answer's tokens are reasoning, its tags among them."""

from server.text.reasoning import ReasoningTags


class ReasoningCounter:
    """Agrees with ReasoningSplitter on what is reasoning, but looks at tokens, one by one."""

    def __init__(self, tags: ReasoningTags, opened: bool) -> None:
        self._opening = tags.opening.encode()
        self._closing = tags.closing.encode()
        self._inside = opened
        self._over = False
        self._text = b""  # as much as may still become a tag
        self._count = 0

    def push(self, data: bytes) -> None:
        """The bytes of the next token, tags included even where they are control tokens."""
        if self._over:
            return
        self._text += data
        self._count += 1
        if not self._inside:
            self._open()
        if self._inside:
            self._over = self._closing in self._text
            self._text = self._text[-len(self._closing) :]

    def _open(self) -> None:
        start = self._text.lstrip()
        if start.startswith(self._opening):
            self._inside = True
            self._text = start[len(self._opening) :]
        elif not self._opening.startswith(start):
            self._over = True

    @property
    def tokens(self) -> int:
        """So far; none as long as they may turn out to be the answer itself."""
        return self._count if self._inside else 0
