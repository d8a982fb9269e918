"""PlainEncoder: text to token ids, the same wherever in a text it stands and with nothing added."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer


class PlainEncoder:
    """A tokenizer without what is meant for whole prompts: no start token, no space before the first word, and
    control tokens' names are text like any other."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: a fast one of transformers, which is left as it is."""
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        spec |= {"post_processor": None, "truncation": None, "padding": None}
        spec["normalizer"] = _without_prefix(spec.get("normalizer"), "normalizers")
        spec["pre_tokenizer"] = _without_prefix(spec.get("pre_tokenizer"), "pretokenizers")
        self._backend: Any = Tokenizer.from_str(json.dumps(spec))
        self._backend.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids if text else []
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Each by itself; many take less time than one by one."""
        if len(texts) == 1:
            return [self.encode(texts[0])]
        return [found.ids for found in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def _without_prefix(part: Any, parts: str) -> Any:
    """A section of tokenizer.json that puts nothing before a text; parts: the key of a sequence's members."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "Sequence":
        return {**part, parts: [kept for one in part[parts] if (kept := _without_prefix(one, parts)) is not None]}
    if kind == "Prepend":
        return None
    if kind == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    return {**part, "add_prefix_space": False} if "add_prefix_space" in part else part
