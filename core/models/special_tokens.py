"""Which token ids end an answer and which are control tokens, read from a model folder's files."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.models.errors import InvalidModelFile

# Tokens by which instruction-tuned models end a turn; a model's files often name only one of them.
END_OF_TURN = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>")
)

_ADDED_TOKENS = re.compile(r'"added_tokens"\s*:\s*\[')


def read_json(path: Path) -> dict[str, Any]:
    """The file's object; empty if there is no such file. InvalidModelFile if it holds something else."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InvalidModelFile(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidModelFile(f"{path} holds no JSON object")
    return value


def special_token_ids(folder: Path) -> dict[int, str]:
    """id -> text of the tokenizer's special tokens; empty for a folder without tokenizer."""
    special = {
        int(token["id"]): str(token["content"])
        for token in _added_tokens(folder / "tokenizer.json")
        if token.get("special")
    }
    for token_id, token in read_json(folder / "tokenizer_config.json").get("added_tokens_decoder", {}).items():
        if token.get("special"):
            special[int(token_id)] = str(token["content"])
    return special


def _added_tokens(path: Path) -> list[dict[str, Any]]:
    """A tokenizer file's list of them; read alone where it is found at once, since all of the file, a vocabulary and
    its merges, takes half a second. (In a string, as a token might be, its quotes would have backslashes before.)"""
    text = path.read_text("utf-8") if path.exists() else ""
    if (found := _ADDED_TOKENS.search(text)) is not None:
        with suppress(ValueError):
            tokens: list[dict[str, Any]] = json.JSONDecoder().raw_decode(text, found.end() - 1)[0]
            return tokens
    return list(read_json(path).get("added_tokens", []))


def end_token_ids(folder: Path, special: dict[int, str]) -> frozenset[int]:
    """Union of config.json's and generation_config.json's EOS ids and the special tokens known to end a turn.

    Qwen2.5 needs all three: its config names <|im_end|> alone, yet <|endoftext|> ends answers too.
    """
    ids = {token_id for token_id, text in special.items() if text in END_OF_TURN}
    for file in ("config.json", "generation_config.json"):
        value = read_json(folder / file).get("eos_token_id")
        ids.update([value] if isinstance(value, int) else value or [])
    return frozenset(ids)


def end_and_control_ids(folder: Path) -> tuple[frozenset[int], frozenset[int]]:
    """Ids that end an answer; and of all control tokens, these among them."""
    special = special_token_ids(folder)
    ends = end_token_ids(folder, special)
    return ends, ends | special.keys()
