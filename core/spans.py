"""SpanTracker: tells where an answer must not be loosened, such as inside a tool call."""

from collections.abc import Sequence
from typing import Protocol


class SpanTracker(Protocol):
    """Follows one answer; stateful, one object per sequence. Made above core, which knows no text."""

    def push(self, token_id: int) -> None:
        """Take the next delivered token."""
        ...

    def protected(self, drafts: Sequence[int], choices: Sequence[int]) -> list[bool]:
        """Of each draft, whether it must not be loosened, were all drafts before it delivered; changes nothing.

        drafts: [K], the tokens proposed to follow those pushed so far; not verified. choices: at least
        [K], what the target itself takes in their places. Position j is to be protected if it lies in a
        span, or if drafts[j] or choices[j] would open or close one.
        """
        ...
