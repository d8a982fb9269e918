"""Figures from answers written by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.answers import Speculated
from benchmarks.errors import BenchError
from benchmarks.evaluation.items import Item, NumberScorer
from benchmarks.evaluation.journal import Journal
from benchmarks.evaluation.plots import draw
from benchmarks.evaluation.reply import Question, Reply
from benchmarks.evaluation.sandbox import Sandbox, Verdict
from benchmarks.evaluation.scoring import Judge
from benchmarks.evaluation.summary import Judged, Row, agreement, summarise
from benchmarks.evaluation.tables import HEAD, cells
from benchmarks.matrix import OFF

SUMS = [Item("sums", f"sums/{n}", f"{n}?", NumberScorer(str(n))) for n in range(4)]
TALK = [Item("talk/a", "talk/0", "Talk."), Item("talk/b", "talk/1", "Talk more.")]
FAST = Speculated(
    rounds=2, round_tokens=8, draft_tokens=20, accepted_tokens=6, loosened={"deferred": 1, "calibrated": 0}
)
LATE = Speculated(
    rounds=4, round_tokens=4, draft_tokens=20, accepted_tokens=0, loosened={"deferred": 0, "calibrated": 0}
)


def judged(item: Item, setting: str, text: str, off: str, reply: Reply) -> Judged:
    passed = None if item.scorer is None else item.scorer.judge(text, None)
    baseline = Reply(off, tokens=10, prompt_tokens=3, cut=False)
    return Judged(item, setting, 0, replace(reply, text=text), passed, baseline)


def table() -> dict[tuple[str, str], Row]:
    """off: 0, 1, 2 right, 3 wrong. fly: 0, 1, 3 right, 2 wrong."""
    off = ["It is 0", "It is 1", "It is 2", "It is 4"]
    fly = ["It is 0", "It is 1", "It is 9", "It is 3"]
    plain = Reply("", tokens=10, prompt_tokens=3, cut=False)
    replies = [
        Reply("", 12, 3, cut=True, speculated=FAST, speedup=2.0),
        *[Reply("", 8, 3, cut=False, speculated=LATE, speedup=0.5)] * 3,
    ]
    answers = [judged(item, "off", text, text, plain) for item, text in zip(SUMS, off, strict=True)]
    answers += [judged(item, "off", "Hello there", "Hello there", plain) for item in TALK]
    pairs = zip(SUMS, fly, off, replies, strict=True)
    answers += [judged(item, "fly", text, other, reply) for item, text, other, reply in pairs]
    answers += [judged(item, "fly", "Hello you", "Hello there", replies[3]) for item in TALK]
    return {(row.group, row.setting): row for row in summarise(answers, {"fly": [1.5, 3.0, 2.0]})}


def test_scores_lengths_and_tokens_add_up() -> None:
    rows = table()
    assert {group for group, _ in rows} == {"sums", "talk/a", "talk/b", "talk", "all"}
    off, fly = rows["sums", "off"], rows["sums", "fly"]
    assert (off.score, off.recovery, off.length, off.equal) == (0.75, None, None, None)
    assert (fly.score, fly.recovery) == (0.75, 1.0)
    assert fly.interval is not None
    assert fly.interval[0] < 1.0 < fly.interval[1]
    assert (fly.tokens, fly.length, fly.cut) == (36, 0.9, 0.25)
    assert (fly.equal, fly.loosened) == (0.5, {"deferred": 1})
    assert fly.tau == pytest.approx(20 / 14)
    assert fly.acceptance == pytest.approx(6 / 80)
    talk = rows["talk", "fly"]
    assert (talk.items, talk.score, talk.recovery, talk.interval) == (2, None, None, None)
    assert talk.agreement == pytest.approx(6 / 11)


def test_every_token_weighs_alike_in_the_estimated_speedup() -> None:
    # 8 tokens at 2.0 and three times 4 at 0.5: 20 tokens that took as long as 4 + 3 * 8 do under off.
    assert table()["sums", "fly"].estimated_speedup == pytest.approx(20 / 28)
    assert table()["sums", "off"].estimated_speedup is None


def test_measured_speeds_are_of_all_tasks_together() -> None:
    rows = table()
    assert rows["all", "fly"].measured_speedup == 2.0
    assert rows["sums", "fly"].measured_speedup is None


def test_rows_fill_their_tables_and_plots(tmp_path: Path) -> None:
    rows = list(table().values())
    assert all(len(cells(row)) == len(HEAD) for row in rows)
    drawn = draw(rows, tmp_path, "mine")
    assert [path.name for path in drawn] == ["mine-recovery.png", "mine-tradeoff.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert draw([row for row in rows if row.group == "talk"], tmp_path, "none") == []


@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_agreement_is_a_share_and_whole_only_for_equal_texts(text: str, other: str) -> None:
    found = agreement(text, other)
    assert 0.0 <= found <= 1.0
    assert (found == 1.0) == (text == other)
    assert found == agreement(other, text)


def test_equal_answers_are_judged_once_and_thoughts_not_at_all() -> None:
    seen: list[str] = []

    class Counting(NumberScorer):
        def judge(self, answer: str, sandbox: Sandbox | None = None) -> Verdict:
            seen.append(answer)
            return super().judge(answer)

    item = Item("sums", "sums/1", "1?", Counting("1"))
    judge = Judge(None)
    said = [(item, "<think>2</think>It is 1"), (item, "It is 2"), (item, "It is 2"), (TALK[0], "hi")]
    first = judge.judge(said)
    assert [verdict and verdict.passed for verdict in first] == [True, False, False, None]
    assert judge.judge(said) == first
    assert sorted(seen) == ["It is 1", "It is 2"]


def test_a_journal_gives_back_what_was_written_to_whom_asks_the_same(tmp_path: Path) -> None:
    path, reply = tmp_path / "new" / "a.jsonl", Reply("é\u2028", 12, 3, cut=True, speculated=FAST, speedup=1.25)
    question = Question(SUMS[0], OFF, 0)
    with Journal(path, {"model": 1}, {"max_tokens": 8}) as journal:
        journal.add(question, reply)
    with Journal(path, {"model": 1}, {"max_tokens": 8}) as journal:
        assert journal.reply(question) == reply
        assert journal.reply(replace(question, seed=1)) is None
        assert journal.reply(Question(replace(SUMS[0], prompt="0 ?"), OFF, 0)) is None
    for identity, common in (({"model": 2}, {"max_tokens": 8}), ({"model": 1}, {"max_tokens": 9})):
        with Journal(path, identity, common) as journal:
            assert journal.reply(question) is None


@pytest.mark.parametrize("line", ["no JSON", "[]", json.dumps({"key": "a", "text": "b"})])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(BenchError, match="line 1: not an answer of an evaluation"), Journal(path, {}, {}):
        pass
    assert path.read_text() == line + "\n"
