"""Hints about fields that were ignored: a misspelt field of ours would otherwise just do nothing.

Only fields that no other API has are suggested; what else clients send beyond OpenAI's fields is none of our business.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from server.errors import shorten

_OWN = ("verifier", "drafter", "num_draft_tokens", "draft_length", "strict_prefix", "return_provenance")
_SIMILAR = 0.75  # "draft_tokens" is near enough to "num_draft_tokens", "num_speculative_tokens" is not
_LONGEST = 32  # characters of a field that is looked at; comparing takes their square
_MOST_READ = 64
_MOST_HINTS = 4


def misspelt(unknown: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each of the unknown fields that is nearly one of ours; bounded work, whatever a client sends."""
    hints: list[str] = []
    for field in islice(unknown, _MOST_READ):
        close = get_close_matches(field.lower(), _OWN, n=1, cutoff=_SIMILAR) if len(field) <= _LONGEST else []
        if close:
            hints.append(f"Unknown field '{shorten(field, _LONGEST)}' was ignored; did you mean '{close[0]}'?")
    return tuple(hints[:_MOST_HINTS])
