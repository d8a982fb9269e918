"""Bridge: between the tokens of a target and those of a draft model with another vocabulary. Made above core, which
knows no text; it is text that both have in common."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Crossed(NamedTuple):
    """A token of the target's, and how many of the drafted tokens its text needs."""

    token_id: int
    needed: int


class Reading(Protocol):
    """One text as the draft model reads it: a pure function of the tokens pushed, in whatever pieces they came.

    settled: the draft model's ids that nothing pushed later can change. open: those behind them, of the text's last
    word or few, which what comes next may change. taken: tokens of the target's that were pushed.
    """

    settled: list[int]
    taken: int

    @property
    def open(self) -> list[int]: ...

    def push(self, tokens: Sequence[int]) -> None:
        """Take the target's next tokens."""
        ...

    def ahead(self, tokens: Sequence[int]) -> list[int]:
        """The draft model's ids behind the settled ones, were these tokens to come next; changes nothing."""
        ...


class Bridge(Protocol):
    """unusable: ids of the draft model that stand for nothing in the target's texts; never drafted. closing: those
    behind which no text of a draft can go on, since they stand for a control token. window: of the target's known
    tokens only so many matter to a crossing, the last."""

    unusable: tuple[int, ...]
    closing: frozenset[int]
    window: int

    def read(self) -> Reading: ...

    def cross(self, known: Sequence[int], drafted: Sequence[int]) -> list[Crossed]:
        """The target's tokens that say what the draft model drafted behind these of the target's: of whole characters
        only, and none where no token would begin at the end of the known text."""
        ...
