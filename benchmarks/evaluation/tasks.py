"""What is to be evaluated, as the command line names it.

    humaneval, gsm8k:200, spec-bench/writing        a set known by name, fetched and checked on first use
    math500=math500.jsonl:50, mbpp=https://...      a file or URL of that kind
    gsm8k=gsm8k_train.jsonl:100                     another file of a known set: a split for tuning

:N takes so many items, evenly spaced, of each category.
"""

import gzip
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import httpx

from benchmarks.datasets import FILES, DataError, data_folder, fetch, spaced
from benchmarks.evaluation.items import Item
from benchmarks.evaluation.readers import READERS, parse, read

_SECONDS = 60.0


def load_items(specs: Iterable[str]) -> list[Item]:
    """The items of all specifications, each once. DataError for one that means nothing or cannot be had."""
    items: dict[tuple[str, str, str], Item] = {}
    for spec in specs:
        for item in _of_spec(spec):
            items.setdefault((item.task, item.name, item.prompt), item)
    return list(items.values())


def _of_spec(spec: str) -> list[Item]:
    head, colon, tail = spec.rpartition(":")
    name, count = (head, int(tail)) if colon and tail.isdecimal() else (spec, None)
    if count == 0:
        raise DataError(f"{spec!r}: the number of items behind the colon should be at least 1")
    kind, _, source = name.partition("=")
    kind, _, category = kind.partition("/")
    if kind not in READERS:
        raise DataError(f"{kind!r} is none of {', '.join(READERS)}")
    if not source and kind not in FILES:
        raise DataError(f"{kind} needs a file or URL, as in {kind}=path/to/{kind}.jsonl")
    items = read(kind, *_records(source)) if source else read(kind, *_records(str(fetch(FILES[kind]))))
    if category:
        items = [item for item in items if item.task == f"{kind}/{category}"] or _no_category(kind, category, items)
    tasks = dict.fromkeys(item.task for item in items)
    return [item for task in tasks for item in spaced([one for one in items if one.task == task], count)]


def _no_category(kind: str, category: str, items: list[Item]) -> list[Item]:
    known = ", ".join(dict.fromkeys(item.task for item in items))
    raise DataError(f"{kind} has no category {category!r}; it has {known}")


def _records(source: str) -> tuple[list[dict[str, object]], str]:
    """A file's or URL's records, and where they are from."""
    path = _downloaded(source) if source.startswith(("http://", "https://")) else Path(source)
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
        return parse(text, source.removesuffix(".gz")), source
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{source} cannot be read: {error}") from error


def _downloaded(url: str) -> Path:
    """Once; kept beside the other data sets under a name that its URL decides."""
    path = data_folder() / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{url.rpartition('/')[2][:80]}"
    if path.exists():
        return path
    try:
        response = httpx.get(url, follow_redirects=True, timeout=_SECONDS)
        response.raise_for_status()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(response.content)
        os.replace(partial, path)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise DataError(f"{url} cannot be fetched: {error or type(error).__name__}") from error
    return path
