r"""What stands in the last \boxed{...} of a text, its own braces included."""

_OPEN = ("\\boxed{", "\\fbox{")


def last_box(text: str) -> str | None:
    """None without a box, or if the last one is never closed."""
    at, opening = max((text.rfind(opening), opening) for opening in _OPEN)
    if at < 0:
        return None
    return group(text, at + len(opening) - 1)


def group(text: str, at: int) -> str | None:
    """What the brace at that place holds; None if it is never closed."""
    depth = 0
    for place in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[at + 1 : place]
    return None
