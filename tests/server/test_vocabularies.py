import json
from pathlib import Path

import pytest

from server.assembly_error import AssemblyError
from server.vocabularies import Vocabulary, difference, log_control_tokens, same_tokenizer


def vocabulary(name: str, *tokens: str, special: frozenset[int] = frozenset()) -> Vocabulary:
    return Vocabulary(name, {token: i for i, token in enumerate(tokens)}, special)


def test_vocabularies_are_compared_by_id() -> None:
    assert difference(vocabulary("T", "a", "b"), Vocabulary("D", {"b": 1, "a": 0}, frozenset())) is None
    assert difference(vocabulary("T", "a", "b"), vocabulary("D", "b", "a")) == (
        "the draft model D has another vocabulary than the target T: 2 ids differ (id 0 is 'a' in T and 'b' in D; id 1 "
        "is 'b' in T and 'a' in D)"
    )


def test_control_tokens_may_have_other_names_if_they_are_control_tokens_in_both() -> None:
    target = vocabulary("T", "a", "<reserved_0>", special=frozenset({1}))
    assert difference(target, vocabulary("D", "a", "<tool>", special=frozenset({1}))) is None
    assert difference(target, vocabulary("D", "a", "b")) is not None


def test_a_control_token_that_only_the_draft_has_is_a_difference() -> None:
    assert difference(vocabulary("T", "a"), vocabulary("D", "a", "<tool>", special=frozenset({1}))) is not None


def test_a_control_token_of_the_targets_chats_that_the_draft_names_differently_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    special = frozenset({1, 2})
    target = Vocabulary("T", {"a": 0, "<end>": 1, "<reserved>": 2}, special, structural={1})
    log_control_tokens(target, Vocabulary("D", {"a": 0, "<end>": 1, "<tool>": 2}, special))
    assert not caplog.records
    other = Vocabulary("D", {"a": 0, "<stop>": 1, "<tool>": 2}, special)
    assert difference(target, other) is None
    log_control_tokens(target, other)
    (record,) = caplog.records
    assert record.getMessage().startswith("D names control tokens of T's chats differently (id 1, <end>): ")


class Tokenizer:
    """What a vocabulary is read from."""

    chat_template = "<|turn|>{{ messages[0].content }}"

    def __init__(self, *tokens: str) -> None:
        self._tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self._tokens)}


def test_control_tokens_in_the_template_or_at_an_answers_end_are_structural(tmp_path: Path) -> None:
    tokens = ["a", "<|turn|>", "<|reserved|>", "<|im_end|>", "<|stop|>"]
    added = [{"id": i, "content": token, "special": True} for i, token in enumerate(tokens) if i]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 4}))
    found = Vocabulary.of("T", Tokenizer(*tokens), tmp_path)
    assert (found.special, found.structural) == ({1, 2, 3, 4}, {1, 3, 4})


def test_a_tokenizer_without_tokens_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssemblyError, match="the tokenizer of T names no tokens"):
        Vocabulary.of("T", Tokenizer(), tmp_path)


def folder(path: Path, **files: object) -> Path:
    """Of a model: each file, without .json, with its content."""
    path.mkdir()
    for name, content in {"tokenizer": {"model": {"vocab": {"a": 0}}}, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("files", "same"),
    [
        ({}, True),
        ({"tokenizer_config": {"bos_token": "<s>", "chat_template": "other", "model_max_length": 8}}, True),
        ({"tokenizer_config": {"bos_token": "<new>"}}, False),
        ({"tokenizer": {"model": {"vocab": {"b": 0}}}}, False),
        ({"config": {"model_type": "llama"}}, False),
        ({"added_tokens": {"<new>": 1}}, False),
    ],
)
def test_a_tokenizer_of_the_same_files_is_known_without_being_loaded(
    files: dict[str, object], same: bool, tmp_path: Path
) -> None:
    usual = {"tokenizer_config": {"bos_token": "<s>"}, "config": {"model_type": "qwen2"}}
    one, other = folder(tmp_path / "one", **usual), folder(tmp_path / "other", **{**usual, **files})
    assert same_tokenizer(one, other) == same


def test_folders_without_a_tokenizer_file_are_not_taken_for_the_same(tmp_path: Path) -> None:
    assert not same_tokenizer(tmp_path, tmp_path)
