"""Prompts to calibrate on, from files.

    .jsonl (.gz)    one JSON object a line, with `messages`, `turns`, `prompt` or `question`
    .json (.gz)     a chat (a list of messages, or an object with `messages`), or a list of what a line may hold
    anything else   text: prompts separated by blank lines; without any, one a line

A string is one user message. `turns` are user messages asked one after the other, each with the answers to those
before it. A chat's last answers are left out, so that it ends with the user's turn.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.correction_origin import sample_id
from server.calibration.errors import CalibrationError

Message = dict[str, Any]
_KEYS = ("messages", "turns", "prompt", "question")
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Sample:
    """before: messages that stand before the first turn. turns: the user's, at least one."""

    before: tuple[Message, ...]
    turns: tuple[str, ...]

    @property
    def id(self) -> int:
        """The same for the same text, whatever file it came from."""
        return sample_id(json.dumps([self.before, self.turns], sort_keys=True))


@dataclass(frozen=True, slots=True)
class PromptFile:
    """sha256: of the file as it is. samples: without those that came before."""

    name: str
    sha256: str
    samples: tuple[Sample, ...]


def read_prompts(paths: Iterable[Path]) -> list[PromptFile]:
    """Of all files, each distinct sample once. CalibrationError, with file and line, for what makes no sense."""
    known: set[int] = set()
    files = []
    for path in paths:
        try:
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise CalibrationError(f"{path} cannot be read: {error}") from error
        new = []
        for sample in _samples(path, text):
            if sample.id not in known:
                known.add(sample.id)
                new.append(sample)
        files.append(PromptFile(path.name, hashlib.sha256(raw).hexdigest(), tuple(new)))
    if not known:
        raise CalibrationError("there are no prompts in " + ", ".join(file.name for file in files))
    return files


def in_even_order(files: Iterable[PromptFile]) -> list[Sample]:
    """All samples in an order that their text alone decides, so that however many are taken of it come evenly from
    everywhere, and the same ones first each time."""
    return sorted((sample for file in files for sample in file.samples), key=lambda sample: sample.id)


def _samples(path: Path, text: str) -> Iterator[Sample]:
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind in (".jsonl", ".ndjson"):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield _sample(_parsed(line, f"{path}, line {number}"), f"{path}, line {number}")
    elif kind == ".json":
        content = _parsed(text, str(path))
        if isinstance(content, dict) or _is_chat(content):
            content = [content]
        if not isinstance(content, list):
            raise CalibrationError(f"{path} should hold a chat or a list of prompts")
        for number, value in enumerate(content, 1):
            yield _sample(value, f"{path}, entry {number}")
    else:
        parts = re.split(r"\n\s*\n", text.strip())
        for part in parts if len(parts) > 1 else text.splitlines():
            if part.strip():
                yield Sample((), (part.strip(),))


def _parsed(text: str, where: str) -> Any:
    try:
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode("utf-8")  # JSON's \\ud800 alone is a character that no text has
    except UnicodeEncodeError as error:
        raise CalibrationError(f"{where} has half of a surrogate pair, which is no text") from error
    except RecursionError as error:
        raise CalibrationError(f"{where} is nested too deeply") from error
    except ValueError as error:
        raise CalibrationError(f"{where} is not JSON: {error}") from error
    return content


def _is_chat(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "role" in one for one in value)


def _sample(value: Any, where: str) -> Sample:
    if isinstance(value, dict):
        key = next((key for key in _KEYS if value.get(key)), None)
        if key is None:
            raise CalibrationError(f"{where}: no {', '.join(_KEYS[:-1])} or {_KEYS[-1]}")
        value, where = value[key], f"{where}: {key}"
        if key == "turns" and isinstance(value, list) and value and all(isinstance(turn, str) for turn in value):
            return Sample((), tuple(value))
    if isinstance(value, str) and value.strip():
        return Sample((), (value,))
    if _is_chat(value):
        return _chat(value, where)
    raise CalibrationError(f"{where} should be text, turns or messages")


def _chat(messages: list[Message], where: str) -> Sample:
    for message in messages:
        if message["role"] not in _ROLES or not isinstance(message.get("content"), str | None):
            raise CalibrationError(f"{where}: a message should have a role ({', '.join(_ROLES)}) and text as content")
    asked = [number for number, message in enumerate(messages) if message["role"] == "user" and message.get("content")]
    if not asked:
        raise CalibrationError(f"{where}: no message of the user's")
    return Sample(tuple(messages[: asked[-1]]), (messages[asked[-1]]["content"],))
