"""AnswerQueue: the answers that wait for their replay, bounded by number and by memory, each of them once."""

import hashlib
import os
from collections import OrderedDict, deque

from server.audit.record import AnswerRecord

MOST_BYTES = 16 << 20  # of all records together
LARGEST = MOST_BYTES // 8  # of one, which must not drive out all the others
REMEMBERED = 4096  # digests of the answers that came last


class AnswerQueue:
    """The oldest give way: dropped counts them. An answer that is queued or was among the last ones to be taken is not
    queued again: under greedy decoding the same prompt gives the same answer, which is no further evidence."""

    def __init__(self, places: int) -> None:
        self.dropped = 0
        self._places = places
        self._waiting: deque[tuple[bytes, AnswerRecord]] = deque()
        self._bytes = 0
        self._key = os.urandom(16)  # so that a digest tells nothing to whoever guesses at the text
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, record: AnswerRecord) -> str | None:
        """Why it is not queued; None if it is."""
        if record.size > LARGEST:
            return "too_large"
        digest = self._digest(record)
        if digest in self._known:
            self._known.move_to_end(digest)
            return "repeated"
        self._known[digest] = None
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        self._waiting.append((digest, record))
        self._bytes += record.size
        while len(self._waiting) > self._places or self._bytes > MOST_BYTES:
            gone, _ = self._pop()
            self._known.pop(gone, None)  # it has not been judged
            self.dropped += 1
        return None

    def take(self) -> AnswerRecord:
        """The oldest. IndexError if nothing waits."""
        return self._pop()[1]

    def clear(self) -> None:
        """As at the start."""
        self._waiting.clear()
        self._known.clear()
        self._bytes = self.dropped = 0

    def _pop(self) -> tuple[bytes, AnswerRecord]:
        entry = self._waiting.popleft()
        self._bytes -= entry[1].size
        return entry

    def _digest(self, record: AnswerRecord) -> bytes:
        digest = hashlib.blake2b(record.request.verifier.model_dump_json().encode(), digest_size=16, key=self._key)
        for part in (record.prompt, record.tokens):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
        return digest.digest()
