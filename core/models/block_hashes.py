"""Names of full blocks: hashes chained over all tokens up to a block's end."""

import hashlib
from array import array
from collections.abc import Iterator


def chained_hashes(tokens: list[int], block_size: int, parent: bytes = b"", first: int = 0) -> Iterator[bytes]:
    """Hashes of the full blocks from block `first` on, one by one; `parent` is the hash of the one before."""
    for end in range((first + 1) * block_size, len(tokens) + 1, block_size):
        text = array("q", tokens[end - block_size : end]).tobytes()
        parent = hashlib.blake2b(parent + text, digest_size=16).digest()
        yield parent
