"""Endings: the tokens of an answer that only say that it ends, which any two answers may share."""

from collections.abc import Callable, Collection, Sequence

from core.sequence import StopCondition

StopFactory = Callable[[], StopCondition | None]
MOST_TOKENS = 32  # of a stop string; a longer one counts as its last token


def ending_size(tokens: Sequence[int], end_token_ids: Collection[int], new_stop: StopFactory) -> int:
    """Of the last tokens of an answer that ended by itself: 1 for an end token, else as many as make up its stop
    string. 1 as well where that takes what came before (a stop string that acts behind the reasoning alone)."""
    if tokens[-1] in end_token_ids:
        return 1
    for size in range(1, min(MOST_TOKENS, len(tokens)) + 1):
        condition = new_stop()
        if condition is not None and any(condition.push(token) for token in tokens[-size:]):
            return size
    return 1
