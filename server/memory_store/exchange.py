"""Sharing what a learning memory counts with the other servers of its database, from a thread of its own."""

import logging
import threading
import uuid

from core.correction_learning import LearningMemory
from core.correction_memory import MemoryFileError
from server.memory_store.pulling import Pulled
from server.memory_store.store import Counts, MemoryStore

log = logging.getLogger(__name__)

_UNPACKED_ROWS = 50_000  # read one by one since the tables were packed: a few hundred milliseconds at the next start
_BEYOND_CAP = 1.1  # so that trimming, which is dear, is rare


class MemoryExchange:
    """Every so many seconds: add what was counted here, then take over everybody's sums. While the database cannot be
    had, counts are kept and serving goes on."""

    def __init__(self, memory: LearningMemory, store: MemoryStore, pulled: Pulled, seconds: float) -> None:
        """pulled: what the memory began with."""
        self._memory, self._store, self._pulled, self._seconds = memory, store, pulled, seconds
        self._unpacked = pulled.unpacked
        self._writer, self._additions = uuid.uuid4().hex, 0
        self._sending: Counts | None = None  # drained, and not known to have been added
        self._ending = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="correction-memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Once more, for what was counted since the last time; waits for it."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._store.close()

    def once(self) -> None:
        """MemoryFileError if the database cannot be used; nothing is lost then, nor counted twice by the next time."""
        self._send()  # what a failure left over
        if counted := self._memory.drain():
            self._sending, self._additions = counted, self._additions + 1
            self._send()
        pulled = self._store.pull(self._pulled)
        if pulled is self._pulled:
            return
        self._pulled = pulled
        self._memory.offer(pulled.tables)
        self._unpacked += pulled.unpacked
        if any(table.num_pairs > _BEYOND_CAP * self._memory.cap for table in pulled.tables.values()):
            self._store.prune(self._memory.cap)
            self._unpacked = 0
        elif self._unpacked > _UNPACKED_ROWS:
            self._store.pack()
            self._unpacked = 0

    def _send(self) -> None:
        if self._sending is not None:
            self._store.add(self._sending, self._writer, self._additions)
            self._sending = None

    def _run(self) -> None:
        while not self._ending.wait(self._seconds):
            self._try()
        self._memory.merge_round()  # the engine has stopped: what its last round taught
        self._try()
        unsent = [self._sending or {}, self._memory.drain()]
        if lost := sum(sum(pairs.values()) for counts in unsent for pairs in counts.values()):
            log.warning("%d counts of the correction memory were never added to %s", lost, self._store.where)

    def _try(self) -> None:
        try:
            self.once()
        except MemoryFileError as error:
            if not self._failing:
                log.warning("counts of the correction memory are kept back: %s", error)
            self._failing = True
        except Exception:
            log.exception("exchanging the correction memory's counts failed")
        else:
            if self._failing:
                log.info("the correction memory's counts are exchanged again")
            self._failing = False
