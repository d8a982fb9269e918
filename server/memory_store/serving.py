"""The correction memory a server begins with, from its settings."""

from dataclasses import dataclass

from core.correction_learning import LearningMemory
from core.correction_memory import CorrectionMemory
from server.memory_settings import CorrectionMemorySettings
from server.memory_store.exchange import MemoryExchange
from server.memory_store.place import MemoryPlace


@dataclass(frozen=True, slots=True)
class ServedMemory:
    """exchange: not started yet; None for a memory that does not change."""

    memory: CorrectionMemory
    exchange: MemoryExchange | None = None


def serve_memory(settings: CorrectionMemorySettings | None, target: str, draft: str | None) -> ServedMemory:
    """target, draft: the models' fingerprints. MemoryFileError if there is no such memory or it is of other models; one
    that learns begins empty where there is none."""
    if settings is None:
        return ServedMemory(CorrectionMemory(target, draft))
    place = MemoryPlace.of(settings.source, settings.namespace)
    if not settings.dynamic:
        memory = place.load()
        memory.check_models(target, draft)
        return ServedMemory(memory)
    store = place.store()
    store.begin(target, draft)
    head, pulled = store.head(), store.pull()
    assert head is not None  # begun just now
    known = CorrectionMemory(head.target, head.draft, cap=settings.cap, created=head.created, tables=pulled.tables)
    memory = LearningMemory(known, settings.cap)
    return ServedMemory(memory, MemoryExchange(memory, store, pulled, settings.sync_seconds))
