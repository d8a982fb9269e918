"""BlockPool: which sequence holds which block, and which blocks a later prompt may find.

A block is a fixed run of positions, the same ids for the target's and the draft's tensors. It is in
exactly one of three states:

    free        no sequence holds it and nothing is known about it
    used        held by `references` sequences; shared by several only if it is registered
    evictable   held by nobody, but registered: a later prompt may find it; taken when free ones run out,
                least recently released first, the tail of a sequence before its head

A block is registered under a hash chained over all tokens up to its end once every one of them is
verified; so equal hashes mean equal tokens at equal positions behind equal contexts. Example, block
size 4, tokens a..j with target_tokens 9: blocks 0 (abcd) and 1 (efgh) are registered, 2 (i, half full)
is not. Of two sequences that computed the same block each keeps its own copy, the first one's is
registered: swapping would move an answer by ulps because of a neighbour.

Draft KV lags behind; a registered block remembers how many of its leading positions have it.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import islice

import numpy as np

from core.models.block_hashes import chained_hashes
from core.models.holder import Holder


class OutOfBlocks(Exception):  # noqa: N818
    """More positions are wanted than the whole pool could hold."""


class IntegrityError(AssertionError):
    """The pool's bookkeeping contradicts itself or the sequences."""


class BlockPool:
    """Ids and bookkeeping of the blocks, no tensors. Every step is O(1) per block it touches, but for a scan of
    the free ones where a sequence starts or meets its neighbour."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and positions in them, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = bytearray(b"\1") * num_blocks  # 1 for a free block: runs of them are found at memory speed
        self._num_free = num_blocks
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._draft_fill = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, cached ones that nobody holds included."""
        return self._num_free + len(self._evictable)

    @property
    def num_used(self) -> int:
        """Blocks held by some sequence."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks a prompt may find, held or not."""
        return len(self._block_of)

    @property
    def num_evictable(self) -> int:
        """Of the cached ones, those that nobody holds."""
        return len(self._evictable)

    def match_prefix(self, sequence: Holder) -> int:
        """Give a sequence without blocks the longest run of registered blocks that begins its tokens, and
        return how many tokens that is. At least one token is always left to compute, and every row owed to the
        prompt's log-probabilities."""
        if sequence.blocks:
            raise ValueError("the sequence holds blocks already")
        owed = sequence.prompt_rows_owed
        longest = (owed.start if owed else len(sequence.tokens) - 1) // self.block_size
        for block_hash in islice(chained_hashes(sequence.tokens, self.block_size), longest):
            block = self._block_of.get(block_hash)
            if block is None:
                break
            self._evictable.pop(block, None)
            self._references[block] += 1
            sequence.blocks.append(block)
            sequence.block_hashes.append(block_hash)
        sequence.target_tokens = len(sequence.blocks) * self.block_size
        sequence.draft_tokens = 0
        self.refresh_draft_watermark(sequence)
        return sequence.target_tokens

    def knows(self, block_hash: bytes) -> bool:
        """Whether a prompt may find a block of this hash."""
        return block_hash in self._block_of

    def grow(self, sequence: Holder, num_positions: int) -> bool:
        """Give the sequence blocks for so many positions; False, and no change, if too few are free.
        OutOfBlocks if even an empty pool were too small."""
        wanted = -(-num_positions // self.block_size)
        if wanted > self.num_blocks:
            raise OutOfBlocks(f"{num_positions} positions need {wanted} blocks; the pool has {self.num_blocks}")
        missing = wanted - len(sequence.blocks)
        if missing > self.num_free:
            return False
        for _ in range(missing):
            block = self._take(sequence)
            self._references[block] = 1
            sequence.blocks.append(block)
        return True

    def release(self, sequence: Holder) -> None:
        """Take all blocks back; registered ones stay cached until the space is needed. A copy whose
        registered twin is gone takes its place, so that a preempted sequence finds its own work again."""
        self._register(sequence, range(len(sequence.block_hashes)))
        for block in reversed(sequence.blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._hash_of[block] is None:
                    self._free[block] = 1
                    self._num_free += 1
                else:
                    self._evictable[block] = None
        sequence.blocks.clear()
        sequence.block_hashes.clear()
        sequence.target_tokens = sequence.draft_tokens = 0

    def commit_tokens(self, sequence: Holder, target_tokens: int, draft_tokens: int) -> None:
        """Move the watermarks and register blocks that became full. Both count verified tokens only;
        draft_tokens may go down (rollback). ValueError if either exceeds what the sequence knows."""
        room = min(len(sequence.tokens), len(sequence.blocks) * self.block_size)
        if not sequence.target_tokens <= target_tokens <= room or not 0 <= draft_tokens <= room:
            raise ValueError(
                f"watermarks {target_tokens} / {draft_tokens} do not fit {len(sequence.tokens)} tokens in "
                f"{len(sequence.blocks)} blocks, {sequence.target_tokens} of them computed before"
            )
        hashes, size = sequence.block_hashes, self.block_size
        # The first block whose draft KV may be news: newly filled, or newly registered.
        changed = min(sequence.draft_tokens // size, len(hashes))
        sequence.target_tokens = target_tokens
        sequence.draft_tokens = draft_tokens
        parent = hashes[-1] if hashes else b""
        fresh = chained_hashes(sequence.tokens, size, parent, len(hashes))
        hashes.extend(islice(fresh, target_tokens // size - len(hashes)))
        self._register(sequence, range(changed, len(hashes)))

    def is_shared(self, block: int) -> bool:
        """Whether several sequences hold the block."""
        return self._references[block] > 1

    def refresh_draft_watermark(self, sequence: Holder) -> None:
        """Move draft_tokens over draft KV that others have written into shared blocks meanwhile, so that
        nobody writes it again."""
        size = self.block_size
        for index in range(sequence.draft_tokens // size, len(sequence.block_hashes)):
            fill = self._draft_fill[sequence.blocks[index]]
            sequence.draft_tokens = max(sequence.draft_tokens, index * size + fill)
            if fill < size:
                break

    def check_integrity(self, sequences: Iterable[Holder]) -> None:
        """IntegrityError naming the first contradiction; `sequences` are all that hold blocks."""
        sequences = list(sequences)
        references = Counter(block for sequence in sequences for block in sequence.blocks)
        for block in range(self.num_blocks):
            self._check_block(block, references[block])
        for block_hash, block in self._block_of.items():
            _require(self._hash_of[block] == block_hash, f"the hash table and block {block} disagree")
        _require(sum(self._free) == self._num_free, "the free blocks are miscounted")
        _require(len(self._block_of) == sum(h is not None for h in self._hash_of), "a registered block is not found")
        for sequence in sequences:
            self._check_sequence(sequence)

    def _check_block(self, block: int, references: int) -> None:
        registered = self._hash_of[block] is not None
        _require(
            self._references[block] == references,
            f"block {block} counts {self._references[block]} holders, has {references}",
        )
        _require(
            (self._free[block] == 1) == (references == 0 and not registered),
            f"block {block} and the free list disagree",
        )
        _require(
            (block in self._evictable) == (references == 0 and registered), f"block {block} and the LRU list disagree"
        )
        _require(references < 2 or registered, f"block {block} is shared but not registered")
        _require(
            0 <= self._draft_fill[block] <= self.block_size, f"block {block} has draft fill {self._draft_fill[block]}"
        )

    def _check_sequence(self, sequence: Holder) -> None:
        name, size = sequence.request.request_id, self.block_size
        full = sequence.target_tokens // size
        _require(len(set(sequence.blocks)) == len(sequence.blocks), f"{name} holds a block twice")
        room = min(len(sequence.blocks) * size, len(sequence.tokens))
        _require(
            0 <= sequence.target_tokens <= room, f"{name} has {sequence.target_tokens} computed tokens, room for {room}"
        )
        _require(
            0 <= sequence.draft_tokens <= room, f"{name} has {sequence.draft_tokens} drafted tokens, room for {room}"
        )
        chain = list(islice(chained_hashes(sequence.tokens, self.block_size), full))
        _require(sequence.block_hashes == chain, f"{name}'s block hashes do not follow from its tokens")
        for index, block in enumerate(sequence.blocks):
            registered = self._hash_of[block]
            allowed = (None, chain[index]) if index < full else (None,)
            _require(registered in allowed, f"{name}'s block {block} is registered for other tokens")

    def _take(self, sequence: Holder) -> int:
        """The next block of a sequence's table: the one behind its last, if that is free, since a run of ids is
        read without gathering; else a new start; else the cached block that is longest unused."""
        block = sequence.blocks[-1] + 1 if sequence.blocks else self.num_blocks
        if block >= self.num_blocks or not self._free[block]:
            if not self._num_free:
                evicted = self._evictable.popitem(last=False)[0]
                self._unregister(evicted)
                return evicted
            block = self._new_start(-(-len(sequence.tokens) // self.block_size) - len(sequence.blocks))
        self._free[block] = 0
        self._num_free -= 1
        return block

    def _new_start(self, known: int) -> int:
        """Where in the longest free run to begin, with `known` blocks of tokens to come at once.

        Behind a block in use somebody may be growing, so its half of the run is left to it, as far as
        the known tokens allow. 400 free blocks are so begun at 0, 200, 100, 300 (each leaves 100 in a row).
        """
        edges = np.flatnonzero(np.diff(np.frombuffer(self._free, np.int8), prepend=0, append=0)).reshape(-1, 2)
        start, end = edges[np.diff(edges).argmax()].tolist()
        if start == 0 or not self._references[start - 1]:
            return int(start)
        return int(start + max(0, min((end - start) // 2, end - start - known)))

    def _register(self, sequence: Holder, indices: Iterable[int]) -> None:
        """Register those of the sequence's full verified blocks that have no twin, and note their draft KV; none of
        background work, which nobody will ask for again: its blocks are free when it ends."""
        if sequence.request.background:
            return
        size = self.block_size
        for index in indices:
            block, block_hash = sequence.blocks[index], sequence.block_hashes[index]
            if self._block_of.setdefault(block_hash, block) == block:
                self._hash_of[block] = block_hash
                fill = max(0, min(size, self._draft_end(sequence) - index * size))
                self._draft_fill[block] = max(self._draft_fill[block], fill)

    def _draft_end(self, sequence: Holder) -> int:
        """Up to which position the sequence's blocks hold draft KV, too."""
        return sequence.draft_tokens

    def _unregister(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            del self._block_of[block_hash]
            self._hash_of[block] = None
            self._draft_fill[block] = 0


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise IntegrityError(message)
