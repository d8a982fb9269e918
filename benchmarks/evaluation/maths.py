r"""Answers of MATH: short LaTeX, equal if they are the same text once typography is gone, or the same number.

What is not done: algebra. "x + 1" and "1 + x" differ, and so do sets in another order.
"""

import re
from fractions import Fraction

from benchmarks.evaluation.boxes import last_box

_MARKER = re.compile(r"\banswer(?:\s+is\b|\s*:)\s*(.+)", re.IGNORECASE)
_DROPPED = re.compile(r"\\(?:left|right|!|,|;|:|\s|displaystyle|big|Big)(?![a-zA-Z])|\\?[$%]|\^\{?\\circ\}?|\s+")
_WORDS = re.compile(r"\\(?:text|mbox|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(?<=[\d}])\\text\{[^{}]*\}$")
_LONE = re.compile(r"\\(frac|sqrt)(?:(\w)(\w)?)")
_FRACTION = re.compile(r"(-?)(?:\\frac\{(-?\d+)\}\{(-?\d+)\}|(-?\d+)/(\d+)|(\d*\.?\d+))")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")


def maths_answer(text: str) -> str | None:
    r"""What the last \boxed{...} holds; otherwise what the last "answer is" line says; otherwise the last formula
    between dollars; None without any."""
    box = last_box(text)
    if box is not None:
        return box
    if marked := _MARKER.findall(text):
        return str(marked[-1]).strip().strip("*").rstrip(".")
    formulas = re.findall(r"\$([^$]+)\$", text)
    return str(formulas[-1]) if formulas else None


def same_maths(answer: str, reference: str) -> bool:
    """Whether an answer in words gives the reference, an expression in LaTeX."""
    found = maths_answer(answer)
    if found is None:
        return False
    mine, expected = normal(found), normal(reference)
    if mine == expected:
        return True
    numbers = _value(mine), _value(expected)
    return numbers[0] is not None and numbers[0] == numbers[1]


def normal(expression: str) -> str:
    r"""Without typography: "\dfrac12" is "\frac{1}{2}", "x = 5" is "5", "10\text{ cm}" is "10", "1,000" is "1000"."""
    text = expression.strip().strip("*").rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = text.replace("\\$", "").replace("\\{", "{").replace("\\}", "}").replace("{,}", ",")
    text = _UNIT.sub("", re.sub(r"\s+(?=\\text)", "", text.strip("$ ")))
    text = _DROPPED.sub("", _WORDS.sub(r"\1", text))
    text = _LONE.sub(_braced, text)
    text = re.sub(r"^[a-zA-Z]=", "", text)
    return _THOUSANDS.sub("", text)


def _braced(match: re.Match[str]) -> str:
    name, first, second = match.groups()
    if name == "sqrt":
        return f"\\sqrt{{{first}}}{second or ''}"
    return f"\\frac{{{first}}}{{{second}}}" if second else match.group()


def _value(text: str) -> Fraction | None:
    """Of a plain number or fraction; None for anything else."""
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    sign, over, under, left, right, number = match.groups()
    try:
        size = Fraction(number) if number else Fraction(int(over or left), int(under or right))
    except ZeroDivisionError:
        return None
    return -size if sign else size
