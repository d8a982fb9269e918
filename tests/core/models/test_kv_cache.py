import errno
import mmap
import sys
import threading
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from core.models.kv_cache import KVCache

CONFIG = LlamaConfig(num_hidden_layers=4, hidden_size=64, num_attention_heads=1, num_key_value_heads=1)
BYTES = 4 << 20  # of each of its eight tensors


def made() -> KVCache:
    return KVCache(CONFIG, BYTES // (16 * 64 * 4), 16, torch.float32, "cpu")


def own_memory() -> int:
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def leave_used_heap() -> torch.Tensor:
    """What the C library then has to give is not zero. It keeps pieces of a size of which one was freed before; and
    what lies below something that is still held, as the result is."""
    torch.ones(2 * BYTES // 4)
    pieces = [torch.ones(BYTES // 4) for _ in range(9)]
    return pieces.pop()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cache_takes_memory_only_as_blocks_are_written() -> None:
    taken = []

    def fill() -> None:
        held = leave_used_heap()
        before = own_memory()
        cache = made()
        taken.append(own_memory() - before)
        for layer in range(4):
            for half in cache.layer(layer):
                half.fill_(1.0)
        taken.append(own_memory() - before)
        assert held.any()

    thread = threading.Thread(target=fill)  # whose heap is another one than the main thread's
    thread.start()
    thread.join()
    empty, full = taken
    assert empty < BYTES
    assert full > 7 * BYTES


def test_what_nobody_wrote_is_zero_whatever_lay_there_before() -> None:
    for _ in range(2):
        cache = made()
        for layer in range(4):
            for half in cache.layer(layer):
                assert half.data_ptr() % 64 == 0
                assert not half.any()
                half.fill_(float("nan"))


def test_where_memory_may_not_be_promised_it_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match=f"{BYTES} bytes"):
        made()
