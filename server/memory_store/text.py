"""A correction memory as text: one JSON object a line, to be read, compared and edited by whatever reads JSON.

    {"format": "slipstream-correction-memory", "version": 1, "target": ..., "draft": ..., "created": ...,
     "runs": [...], "samples": [...], "tables": {"model": {"samples": 12, "tokens": 3400, "pairs": 2}, ...}}
    {"proposer": "model", "draft": 13, "target": 382, "count": 41, "texts": [".", ".\\n"]}
    ...

texts are for people and not read back.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.correction_file import COUNT_LIMIT, FORMAT
from core.correction_memory import PROPOSERS, CorrectionMemory, MemoryFileError
from core.correction_origin import MemoryOrigin
from core.correction_table import TOKEN_LIMIT, MemorySnapshot, freeze, pair_key


class TokenTexts(Protocol):
    def of(self, token_id: int) -> str: ...


Amount = Annotated[int, Field(ge=0, lt=1 << 63)]
Proposer = Literal["model", "prompt_lookup", "token_recycling", "datastore"]  # a test holds it against PROPOSERS
Checked = TypeVar("Checked", bound=BaseModel)
TokenId = Annotated[int, Field(ge=0, lt=TOKEN_LIMIT)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _TableLine(_Line):
    samples: Amount
    tokens: Amount
    pairs: Amount


class _Header(_Line):
    format: Literal["slipstream-correction-memory"]
    version: Literal[1]
    target: str
    draft: str | None
    created: str
    runs: list[dict[str, Any]]
    samples: list[Amount]
    tables: dict[Proposer, _TableLine]


class _Pair(_Line):
    proposer: Proposer
    draft: TokenId
    target: TokenId
    count: Annotated[int, Field(ge=1, lt=COUNT_LIMIT)]
    texts: list[str] | None = None


def write_text(path: Path, memory: CorrectionMemory, texts: TokenTexts | None = None) -> int:
    """Replaces the file at once; how many pairs were written, the most frequent first. OSError."""
    written = 0
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for line in _lines(memory, texts):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                written += 1
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return written - 1


def _lines(memory: CorrectionMemory, texts: TokenTexts | None) -> Iterator[Mapping[str, Any]]:
    tables = {name: table.fold() for name, table in memory.tables.items()}
    yield {
        "format": FORMAT,
        "version": 1,
        "target": memory.target,
        "draft": memory.draft,
        "created": memory.created,
        "runs": list(memory.origin.runs),
        "samples": memory.origin.samples.tolist(),
        "tables": {
            name: {"samples": one.calibrated_samples, "tokens": one.calibrated_tokens, "pairs": int(one.keys.size)}
            for name, one in tables.items()
        },
    }
    for name, table in tables.items():
        for index in np.argsort(-table.occurrences, kind="stable").tolist():
            draft, target = int(table.keys[index]) >> 32, int(table.keys[index]) & 0xFFFFFFFF
            pair = {"proposer": name, "draft": draft, "target": target, "count": int(table.occurrences[index])}
            yield pair if texts is None else {**pair, "texts": [texts.of(draft), texts.of(target)]}


def read_text(path: Path) -> CorrectionMemory:
    """All of it checked before any is used. MemoryFileError names the line that is wrong."""
    header: _Header | None = None
    counts: dict[str, dict[int, int]] = {proposer: {} for proposer in PROPOSERS}
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if header is None:
                    header = _checked(_Header, line, f"{path}, line {number}")
                elif line.strip():
                    pair = _checked(_Pair, line, f"{path}, line {number}")
                    key = pair_key(pair.draft, pair.target)
                    if key in counts[pair.proposer]:
                        raise MemoryFileError(f"{path}, line {number}: this pair was there before")
                    counts[pair.proposer][key] = pair.count
    except (OSError, UnicodeDecodeError) as error:
        raise MemoryFileError(f"cannot read {path}: {error}") from error
    if header is None:
        raise MemoryFileError(f"{path} is empty")
    return _memory(path, header, counts)


def _memory(path: Path, header: _Header, counts: Mapping[str, Mapping[int, int]]) -> CorrectionMemory:
    tables = {}
    for proposer, pairs in counts.items():
        said = header.tables.get(proposer, _TableLine(samples=0, tokens=0, pairs=0))  # type: ignore[call-overload]
        if said.pairs != len(pairs):
            raise MemoryFileError(f"{path} holds {len(pairs)} pairs of {proposer}, its first line says {said.pairs}")
        tables[proposer] = MemorySnapshot(
            recent=pairs, calibrated_samples=said.samples, calibrated_tokens=said.tokens
        ).fold()
    samples = freeze(np.unique(np.array(header.samples, np.int64)))
    origin = MemoryOrigin(tuple(header.runs), samples)
    return CorrectionMemory(header.target, header.draft, created=header.created, tables=tables, origin=origin)


def _checked(model: type[Checked], line: str, where: str) -> Checked:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise MemoryFileError(f"{where}: {key + ': ' if key else ''}{first['msg']}") from error
