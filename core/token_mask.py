"""Token masks: one bit per token id, in int32 words, the lowest id in the lowest bit."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.int32]


def pack(token_ids: Iterable[int], num_words: int) -> Bits:
    """A mask of the given tokens; ids that it has no bit for are left out."""
    flags = np.zeros(num_words * 32, dtype=bool)
    flags[[token for token in token_ids if token < len(flags)]] = True
    return np.packbits(flags, bitorder="little").view(np.int32)


def has(mask: Bits, token_id: int) -> bool:
    return token_id < 32 * len(mask) and bool(mask[token_id // 32] >> (token_id % 32) & 1)


def only(mask: Bits) -> int | None:
    """The only token of the mask; None if there are several, or none."""
    if np.count_nonzero(mask) != 1:
        return None
    word = int(mask.nonzero()[0][0])
    bits = int(mask[word]) & 0xFFFFFFFF
    return None if bits & (bits - 1) else 32 * word + bits.bit_length() - 1
