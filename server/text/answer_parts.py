"""What an answer is made of once its markup has been read: words, reasoning, and tool calls.

Parts come in pieces, so that each can be sent as soon as it is certain. Joining the pieces of a kind (of a call: by
its index) gives the same whatever the pieces were.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    """Words for the user. start: characters of the answer, markup included, before them; text has no gaps."""

    text: str
    start: int = field(default=0, compare=False)

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Tool call number `index` of this answer, from 0. id: unique, in the form the model's template expects."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A further piece of call number `index`'s arguments, as JSON text."""

    index: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments


def joined(parts: list[Part]) -> list[Part]:
    """Neighbours of a kind made one: many small pieces cost a client more than one."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        match last, part:
            case Content(before, start), Content(text, following) if following == start + len(before):
                result[-1] = Content(before + text, start)
            case Reasoning(before), Reasoning(text):
                result[-1] = Reasoning(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                result[-1] = CallArguments(index, before + text)
            case _:
                result.append(part)
    return result
