"""The datastore drafter's texts, read and tokenised at start-up."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.token_store import TokenStore
from server.datastore_settings import DatastoreError, DatastoreSettings

log = logging.getLogger(__name__)

_AT_ONCE = 4 << 20  # characters that the tokenizer gets together, to share them out among threads file by file


def read_store(settings: DatastoreSettings, tokenizer: Any, vocab_size: int) -> TokenStore:
    """Index all files; takes seconds for a million tokens. tokenizer: the target's. vocab_size: ids from there on end a
    text, since the target has none of them. DatastoreError."""
    began, paths = time.monotonic(), settings.paths()
    texts: list[NDArray[np.int32]] = []
    left = settings.max_tokens
    for batch in _batches(paths):
        for ids in tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]:
            tokens = np.array(ids, dtype=np.int32)
            tokens[tokens >= vocab_size] = -1
            texts.append(tokens)
            left -= len(tokens)
        if left < 0:
            raise DatastoreError(
                f"{len(texts)} of the {len(paths)} files hold {settings.max_tokens - left} tokens already, and "
                f"max_tokens is {settings.max_tokens}; name fewer files, or raise it"
            )
    read = time.monotonic()
    store = TokenStore(texts)
    log.info(
        "datastore: %d tokens of %d files, tokenised in %.1f s, indexed in %.1f s",
        len(store), len(paths), read - began, time.monotonic() - read,
    )  # fmt: skip
    return store


def _batches(paths: list[Path]) -> Iterator[list[str]]:
    """The files' texts, some megabytes at a time."""
    batch: list[str] = []
    size = 0
    for path in paths:
        batch.append(_text(path))
        size += len(batch[-1])
        if size >= _AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DatastoreError(f"{path} is no UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise DatastoreError(f"cannot read {path}: {error.strerror}") from None
