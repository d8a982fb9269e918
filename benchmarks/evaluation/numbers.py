"""The number that an answer in words ends with."""

import re
from decimal import Decimal, InvalidOperation

from benchmarks.evaluation.boxes import last_box

# A sign counts unless it stands behind something that it would subtract from: "5-3" ends with 3, "it is -3" with -3.
# Thousands are grouped by three, "1,000"; any other comma parts two numbers, "1, 2".
_NUMBER = re.compile(r"(?:(?<![\w)\]])[-−–]\s?)?(?:\$-?)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+")
_MARKER = re.compile(r"####|\b(?:final\s+)?answer(?:\s+is\b|\s*:|\s*=|\*\*\s*:?)", re.IGNORECASE)


def numeric_answer(text: str) -> Decimal | None:
    """The number meant as the answer: in the last \\boxed{...}; otherwise behind the last "answer is", "Answer:" or
    "####", the one behind the last "=" if that line calculates; otherwise the last number of the text. None without."""
    text = text.replace("\\$", "$").replace("{,}", ",").replace("\\,", "").replace("\\!", "")
    box = last_box(text)
    if box is not None and (found := _numbers(box)):
        return found[-1]
    for marker in reversed(list(_MARKER.finditer(text))):
        line = text[marker.end() :].lstrip("*: \n\t").partition("\n")[0]
        if found := _numbers(line.rpartition("=")[2]) or _numbers(line):
            return found[0]
    found = _numbers(text)
    return found[-1] if found else None


def same_number(answer: str, reference: str) -> bool:
    """Whether an answer in words gives the number that a reference is ("1,234" or "18.0")."""
    expected = numeric_answer(reference)
    return expected is not None and numeric_answer(answer) == expected


def _numbers(text: str) -> list[Decimal]:
    found = []
    for match in _NUMBER.finditer(text):
        digits = re.sub(r"[$,\s]", "", match.group()).replace("−", "-").replace("–", "-")
        try:
            found.append(Decimal(digits))
        except InvalidOperation:
            continue
    return found
