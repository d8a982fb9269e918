"""`slipstream memory show`: the summary, then per table the most frequent pairs, their kinds, and the coverage."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from core.correction_memory import CorrectionMemory
from core.correction_table import MemorySnapshot
from core.models.checkpoint import fingerprint
from core.models.model_config import read_config
from core.models.special_tokens import end_and_control_ids
from server.language import load_tokenizer
from server.memory_report.categories import CATEGORIES, category
from server.memory_report.coverage import coverage
from server.memory_report.summary import summary
from server.settings import Settings
from server.text.token_bytes import TokenBytes
from server.weights import WeightStore


@dataclass(frozen=True, slots=True)
class Texts:
    """What tokens say: of the target's vocabulary."""

    token_bytes: TokenBytes
    control: frozenset[int]

    def of(self, token_id: int) -> str:
        return self.token_bytes.label(token_id)

    def kind(self, draft: int, target: int) -> str:
        return category(self.of(draft), self.of(target), draft in self.control or target in self.control)


def texts_of(settings: Settings, memory: CorrectionMemory) -> Texts:
    """Of the configuration's target. WeightsError if it cannot be had, MemoryFileError if the memory is of another."""
    folder = WeightStore(settings.cache_dir).resolve(settings.models.target)
    memory.check_models(fingerprint(folder), None)
    _, control = end_and_control_ids(folder)
    vocab = int(read_config(folder).vocab_size)
    return Texts(TokenBytes.from_tokenizer(load_tokenizer(folder), vocab, control), control)


def report(memory: CorrectionMemory, texts: Texts | None, top: int, proposer: str | None = None) -> Iterator[str]:
    """Lines. texts: None shows ids. top: how many pairs. proposer: of its table alone."""
    yield from summary(memory)
    for name, table in memory.tables.items():
        if table.num_pairs and proposer in (None, name):
            yield from _table(name, table.fold(), texts, top)


def _table(name: str, table: MemorySnapshot, texts: Texts | None, top: int) -> Iterator[str]:
    points = coverage(table.occurrences)
    yield ""
    yield f"{name}: the most frequent share of patterns, and the share of rejections it covers"
    yield "  " + "  ".join(f"{share:.0%}: {covered:.0%}" for share, covered in points)
    if texts is not None:
        yield f"{name}: kinds, by share of rejections"
        yield "  " + ", ".join(f"{kind} {share:.0%}" for kind, share in _kinds(table, texts).items())
    if top:
        yield f"{name}: the draft's token, the target's, how often{'' if texts is None else ', kind'}"
    for index in np.argsort(-table.occurrences, kind="stable")[:top]:
        draft, target = int(table.keys[index]) >> 32, int(table.keys[index]) & 0xFFFFFFFF
        if texts is None:
            yield f"  {draft:>8}  {target:>8}  {table.occurrences[index]}"
        else:
            shown = [json.dumps(texts.of(one), ensure_ascii=False) for one in (draft, target)]
            yield f"  {shown[0]:<22} {shown[1]:<22} {table.occurrences[index]:>6}  {texts.kind(draft, target)}"


def _kinds(table: MemorySnapshot, texts: Texts) -> Mapping[str, float]:
    """Share of the rejections by kind, largest first; kinds that do not occur are left out."""
    sums: Counter[str] = Counter()
    for key, count in zip(table.keys.tolist(), table.occurrences.tolist(), strict=True):
        sums[texts.kind(key >> 32, key & 0xFFFFFFFF)] += count
    whole = sum(sums.values())
    return {kind: sums[kind] / whole for kind in sorted(CATEGORIES, key=lambda kind: -sums[kind]) if sums[kind]}
