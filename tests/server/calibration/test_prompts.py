"""Prompts from files: every shape that is promised, each sample once, and clear words about what is none."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from server.calibration.errors import CalibrationError
from server.calibration.prompts import Sample, in_even_order, read_prompts

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Because."},
]


def read(tmp_path: Path, name: str, text: str) -> list[Sample]:
    (tmp_path / name).write_text(text)
    (file,) = read_prompts([tmp_path / name])
    return list(file.samples)


def lines(*values: object) -> str:
    return "\n".join(json.dumps(value) for value in values) + "\n"


def test_a_line_of_jsonl_may_hold_any_of_the_promised_shapes(tmp_path: Path) -> None:
    text = lines({"prompt": "a"}, {"question": "b", "answer": "x"}, {"turns": ["c", "d"]}, {"messages": CHAT}, "e")
    assert read(tmp_path, "x.jsonl", text + "\n") == [
        Sample((), ("a",)),
        Sample((), ("b",)),
        Sample((), ("c", "d")),
        Sample(tuple(CHAT[:3]), ("Why?",)),
        Sample((), ("e",)),
    ]


@pytest.mark.parametrize("content", [CHAT, {"messages": CHAT}, [{"messages": CHAT}], [CHAT]])
def test_a_chat_file_ends_with_the_users_last_turn(tmp_path: Path, content: object) -> None:
    assert read(tmp_path, "chat.json", json.dumps(content)) == [Sample(tuple(CHAT[:3]), ("Why?",))]


def test_text_is_a_prompt_a_line_or_paragraphs(tmp_path: Path) -> None:
    assert read(tmp_path, "a.txt", "one\ntwo\n") == [Sample((), ("one",)), Sample((), ("two",))]
    assert read(tmp_path, "b.txt", "one\nmore\n\n \ntwo\n\n") == [Sample((), ("one\nmore",)), Sample((), ("two",))]


def test_each_sample_is_read_once_and_files_are_known_by_their_checksum(tmp_path: Path) -> None:
    raw = gzip.compress(lines({"prompt": "a"}, {"question": "a"}, {"prompt": "b"}).encode())
    (tmp_path / "x.jsonl.gz").write_bytes(raw)
    (tmp_path / "y.txt").write_text("b\nc\n")
    one, two = read_prompts([tmp_path / "x.jsonl.gz", tmp_path / "y.txt"])
    assert (one.name, one.sha256) == ("x.jsonl.gz", hashlib.sha256(raw).hexdigest())
    assert [sample.turns for sample in one.samples + two.samples] == [("a",), ("b",), ("c",)]


def test_the_order_depends_on_the_text_alone_and_mixes_files(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("".join(f"x{i}\n" for i in range(100)))
    (tmp_path / "y.txt").write_text("".join(f"y{i}\n" for i in range(100)))
    forth = in_even_order(read_prompts([tmp_path / "x.txt", tmp_path / "y.txt"]))
    assert forth == in_even_order(read_prompts([tmp_path / "y.txt", tmp_path / "x.txt"]))
    assert 15 <= sum(sample.turns[0].startswith("x") for sample in forth[:50]) <= 35


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("x.jsonl", '{"prompt": "a"}\n{"prompt"', "x.jsonl, line 2 is not JSON"),
        ("x.jsonl", '{"answer": "a"}', "line 1: no messages, turns, prompt or question"),
        ("x.jsonl", '{"turns": [1]}', "line 1: turns should be text, turns or messages"),
        ("x.jsonl", '{"prompt": {"a": 1}}', "line 1: prompt should be text"),
        ("x.jsonl", '{"messages": [{"role": "robot", "content": "x"}]}', "a message should have a role"),
        ("x.jsonl", '{"messages": [{"role": "assistant", "content": "x"}]}', "no message of the user's"),
        ("x.json", "3", "x.json should hold a chat or a list"),
        ("x.txt", " \n", "there are no prompts in x.txt"),
        ("x.jsonl", '{"prompt": "a"}\n{"prompt": "b \\ud800"}', "line 2 has half of a surrogate pair"),
        ("x.json", "[" * 100_000, "x.json is nested too deeply"),
        ("x.jsonl.gz", "no gzip", "cannot be read"),
    ],
)
def test_what_is_no_prompt_is_said_with_its_place(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    with pytest.raises(CalibrationError, match=complaint):
        read(tmp_path, name, text)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"none\.jsonl cannot be read"):
        read_prompts([tmp_path / "none.jsonl"])
