"""How much of a text's end may still become a marker, and must not be shown yet."""

from collections.abc import Iterable


def held(text: str, markers: Iterable[str]) -> int:
    """Characters at the end of `text` that are the beginning of a marker without being all of it; 0 if none are.

    held("a <tool", ["<tool_call>"]) == 5.
    """
    return max((_overlap(text, marker) for marker in markers), default=0)


def _overlap(text: str, marker: str) -> int:
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def first_of(text: str, markers: Iterable[str]) -> tuple[int, str] | None:
    """Where the first marker stands and which it is, the longest if several begin there; None without any."""
    found = [(text.find(marker), -len(marker), marker) for marker in markers if marker in text]
    if not found:
        return None
    start, _, marker = min(found)
    return start, marker
