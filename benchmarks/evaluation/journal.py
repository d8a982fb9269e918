"""Every finished answer, written down at once: a run that ends early goes on where it stopped.

One JSON object a line. A line that was cut off by whatever ended the run is not counted. Answers to other questions, of
other models or settings, may stand in the same file and are left alone.
"""

import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from benchmarks.answers import Speculated
from benchmarks.errors import BenchError
from benchmarks.evaluation.reply import Question, Reply, fingerprint
from benchmarks.matrix import Setting


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second of a setting on a whole group of items, while all clients were being answered. run: which one
    measured it; times of two runs do not compare."""

    group: str
    setting: str
    seed: int
    rate: float
    run: str = ""


class Journal:
    """path: made if need be. identity: of whoever answers. common: of every request, its length and sampling but the
    seed. particular: what else decides the answers of requests with these fields. A context manager: only one may write
    to a file at a time."""

    def __init__(
        self, path: Path, identity: Any, common: Any, particular: Callable[[Mapping[str, Any]], Any] = lambda _: None
    ) -> None:
        self.path = path
        self._about, self._particular = fingerprint(identity, common), particular
        self._replies: dict[str, Reply] = {}
        self._rates: dict[str, dict[str, float]] = {}
        self._run = uuid.uuid4().hex
        self._settings: dict[str, tuple[Any, ...]] = {}

    def __enter__(self) -> Self:
        """BenchError if somebody else has it, or it is not such a file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(f"{self.path}.lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise BenchError(f"another run is writing to {self.path}; give this one a --name of its own") from error
        try:
            self._read()
            self._file = self.path.open("a", encoding="utf-8")
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._lock.release()

    def reply(self, question: Question) -> Reply | None:
        return self._replies.get(self._key(question))

    def add(self, question: Question, reply: Reply) -> None:
        """On the disk before this returns."""
        key = self._key(question)
        self._replies[key] = reply
        item = question.item
        told = {"task": item.task, "item": item.name, "setting": question.setting.name, "seed": question.seed}
        self._write({"key": key, **told, **asdict(reply)})

    def rates(self, group: str, setting: Setting, seed: int) -> Mapping[str, float]:
        """Tokens per second by run, the latest last."""
        return self._rates.get(self._rate_key(group, setting, seed), {})

    def add_rate(self, group: str, setting: Setting, seed: int, tokens_per_second: float) -> None:
        rate = Rate(group, setting.name, seed, tokens_per_second, self._run)
        key = self._rate_key(group, setting, seed)
        self._keep(key, rate)
        self._write({"rate_key": key, **asdict(rate)})

    def _keep(self, key: str, rate: Rate) -> None:
        by_run = self._rates.setdefault(key, {})
        by_run.pop(rate.run, None)
        by_run[rate.run] = rate.rate

    def _key(self, question: Question) -> str:
        item = question.item
        return fingerprint(item.task, item.name, item.prompt, question.seed, *self._told(question.setting))

    def _rate_key(self, group: str, setting: Setting, seed: int) -> str:
        return fingerprint(group, seed, *self._told(setting))

    def _told(self, setting: Setting) -> tuple[Any, ...]:
        """Asked once: a memory takes its time to tell apart, and one that learns while it answers is what it was at
        first."""
        fields = json.dumps(setting.fields, sort_keys=True)
        if fields not in self._settings:
            self._settings[fields] = self._about, setting.fields, self._particular(setting.fields)
        return self._settings[fields]

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> None:
        if not self.path.exists():
            return
        raw = self.path.read_bytes()
        whole, _, cut = raw.rpartition(b"\n")
        if cut:
            os.truncate(self.path, len(raw) - len(cut))
        for number, line in enumerate(whole.split(b"\n") if whole else (), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise BenchError(f"{self.path}, line {number}: not an answer of an evaluation") from error

    def _take(self, record: dict[str, Any]) -> None:
        if "rate_key" in record:
            key = record.pop("rate_key")
            self._keep(key, Rate(**record))
            return
        key = record.pop("key")
        for name in ("task", "item", "setting", "seed"):
            record.pop(name)
        self._replies[key] = Reply(**{**record, "speculated": Speculated(**record["speculated"])})
