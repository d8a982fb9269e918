"""Special tokens are found in a tokenizer's files wherever they stand there."""

import json
from pathlib import Path

import pytest

from core.models.errors import InvalidModelFile
from core.models.special_tokens import special_token_ids

ADDED = [
    {"id": 7, "content": "<|im_end|>", "special": True},
    {"id": 8, "content": "<tool>", "special": False},
    {"id": 9, "content": 'say "added_tokens": [', "special": True},
]
VOCAB = {"a": 0, '"added_tokens": [': 1, "added_tokens": 2, '\\"added_tokens":[{': 3}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("order", [("added_tokens", "model"), ("model", "added_tokens")])
def test_they_are_read_whatever_stands_before_them(order: tuple[str, str], indent: int | None, tmp_path: Path) -> None:
    parts = {"added_tokens": ADDED, "model": {"vocab": VOCAB, "merges": [['"added_tokens":', "["]]}}
    text = json.dumps({name: parts[name] for name in order}, indent=indent)
    (tmp_path / "tokenizer.json").write_text(text, "utf-8")
    assert special_token_ids(tmp_path) == {7: "<|im_end|>", 9: 'say "added_tokens": ['}


@pytest.mark.parametrize("text", ["{}", '{"model": {"vocab": {"a": 0}}}', '{"added_tokens": []}'])
def test_a_tokenizer_may_have_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text, "utf-8")
    assert special_token_ids(tmp_path) == {}


def test_a_folder_may_lack_a_tokenizer(tmp_path: Path) -> None:
    assert special_token_ids(tmp_path) == {}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 3,', "utf-8")
    with pytest.raises(InvalidModelFile, match=r"tokenizer\.json"):
        special_token_ids(tmp_path)
