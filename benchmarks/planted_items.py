"""Questions with one short right answer and a wrong one beside it, for wrong tokens to be planted.

One JSON object a line: `kind`; `ask`, the user's message; `begin`, how the answer begins; `right` and `wrong`, how it
could go on, with the space in front if there is one. The two part at one token, where the wrong one is planted.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.errors import BenchError

OURS = Path(__file__).with_name("planted.jsonl")


@dataclass(frozen=True, slots=True)
class Item:
    kind: str
    ask: str
    begin: str
    right: str
    wrong: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Where an item's two answers part. context: tokens of the chat up to there, in which both agree. right: what the
    right answer has there. wrong: the wrong one's from there on."""

    context: list[int]
    right: int
    wrong: list[int]


def read_items(path: Path) -> list[Item]:
    """BenchError with the line for what is no such object."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read: {error}") from error
    items = [_item(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise BenchError(f"{path} holds no items")
    return items


def _item(line: str, place: str) -> Item:
    names = [field.name for field in fields(Item)]
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{place}: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in names):
        raise BenchError(f"{place}: should be an object with the texts {', '.join(names)}")
    return Item(**{name: found[name] for name in names})


def fork(item: Item, encode: Callable[[str, str], Sequence[int]]) -> Fork | None:
    """None if this tokenizer does not tell the answers apart: the one's tokens begin with all of the other's.

    encode: of a message and how its answer begins, to the tokens of the chat.
    """
    right, wrong = (list(encode(item.ask, item.begin + end)) for end in (item.right, item.wrong))
    same = next((at for at, (one, other) in enumerate(zip(right, wrong, strict=False)) if one != other), None)
    return None if same is None else Fork(right[:same], right[same], wrong[same:])
