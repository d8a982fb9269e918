"""`slipstream bench adversarial`: what is planted, in front of what, and what lets it through."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from benchmarks.adversarial import measure_adversarial
from benchmarks.errors import BenchError
from benchmarks.planted_items import OURS, Fork, Item, fork, read_items
from benchmarks.planting import Planted, Reader, Refusal, plant, verdict
from benchmarks.results_file import Results
from core.correction_table import MemorySnapshot
from core.provenance import Provenance
from core.verifiers.params import FlyParams, LossyParams, StrictParams, VerifierParams
from tests.conftest import ROOT
from tests.naive import plain_logits
from tests.tiny import make_request, make_runtime, random_model, random_prompt

MODEL = random_model(17)
CONTEXT = random_prompt(21, seed=8)
NOTHING: frozenset[int] = frozenset()


def choice(text: list[int]) -> int:
    return int(plain_logits(MODEL, text)[-1].argmax())


def planted(num_drafts: int = 15, wrong: int = 77, ends: frozenset[int] = NOTHING) -> Planted:
    reader = Reader(make_runtime(MODEL).target)
    found = plant(reader, Fork(CONTEXT, choice(CONTEXT), [wrong]), num_drafts, ends)
    assert isinstance(found, Planted)
    return found


def judged(block: Planted, verifier: VerifierParams) -> tuple[Provenance, int]:
    request = make_request(CONTEXT, verifier=verifier, drafter="model", num_draft_tokens=len(block.drafts))
    return verdict(block.evidence(request, NOTHING), request, MemorySnapshot())


def test_behind_the_planted_token_stands_what_the_target_itself_goes_on_with() -> None:
    block, text = planted(num_drafts=9), [*CONTEXT, 77]
    while len(text) < len(CONTEXT) + 9:
        text.append(choice(text))
    assert block.drafts == text[len(CONTEXT) :]
    assert [int(row.argmax()) for row in block.logits[1:-1]] == block.drafts[1:]
    assert int(block.logits[0].argmax()) == choice(CONTEXT) != 77
    assert int(block.logits[-1].argmax()) == choice(text)


def test_flys_window_sees_nothing_amiss_so_that_its_gate_alone_decides() -> None:
    block = planted()
    correction = (Provenance.CORRECTION, 1)
    assert judged(block, StrictParams()) == correction
    assert judged(block, FlyParams(entropy_threshold=0.0)) == (Provenance.DEFERRED, 16)
    assert judged(block, FlyParams(entropy_threshold=10.0)) == correction
    assert judged(block, LossyParams(threshold=1e-30)) == (Provenance.LENIENT, 16)
    assert judged(block, LossyParams(threshold=1.0)) == correction


def test_a_block_ends_with_an_end_token_which_keeps_flys_window_shut() -> None:
    whole = planted()
    ends = frozenset({whole.drafts[3]})
    cut = planted(ends=ends)
    assert cut.drafts == whole.drafts[: whole.drafts.index(whole.drafts[3]) + 1]
    behind = len(cut.drafts) - 1
    assert judged(cut, FlyParams(entropy_threshold=0.0, window=behind))[0] is Provenance.DEFERRED
    assert judged(cut, FlyParams(entropy_threshold=0.0, window=behind + 1))[0] is Provenance.CORRECTION


def test_nothing_is_planted_where_the_target_says_something_else_or_leaves_the_wrong_answer_unfinished() -> None:
    reader, own = Reader(make_runtime(MODEL).target), choice(CONTEXT)
    other = plant(reader, Fork(CONTEXT, own + 1, [77]), 9, NOTHING)
    assert other == Refusal("the target's own choice is another one", own)
    behind = planted().drafts[1]
    assert isinstance(plant(reader, Fork(CONTEXT, own, [77, behind]), 9, NOTHING), Planted)
    unfinished = plant(reader, Fork(CONTEXT, own, [77, behind + 1]), 9, NOTHING)
    assert unfinished == Refusal("the target does not complete the wrong answer", own)


class Flipping(Reader):
    """Rounds otherwise where many rows are read at once, so that the nearest rival wins there."""

    def rows(self, tokens: Sequence[int], known: int, count: int) -> Tensor:
        logits = super().rows(tokens, known, count).clone()
        if count > 1:
            best, rival = logits[0].topk(2).indices
            logits[0, best] = logits[0, rival] - 1e-6
        return logits


def test_nothing_is_planted_where_the_right_answer_is_the_targets_choice_only_without_a_block() -> None:
    own, reader = choice(CONTEXT), Flipping(make_runtime(MODEL).target)
    rival = int(plain_logits(MODEL, CONTEXT)[-1].topk(2).indices[1])
    for wrong in (rival, 77):
        assert plant(reader, Fork(CONTEXT, own, [wrong]), 9, NOTHING) == Refusal(
            "the target's own choice is another one as soon as a block is read with it", rival
        )


def by_letters(ask: str, begin: str) -> list[int]:
    return [ord(letter) for letter in f"<{ask}>{begin}"]


def test_answers_part_at_their_first_different_token() -> None:
    at = fork(Item("number", "6 x 8", "48", "0", "1"), by_letters)
    assert at == Fork(by_letters("6 x 8", "48"), ord("0"), [ord("1")])
    at = fork(Item("number", "6 x 8", "", "480", "484"), by_letters)
    assert at == Fork(by_letters("6 x 8", "48"), ord("0"), [ord("4")])
    assert fork(Item("number", "6 x 8", "", "48", "480"), by_letters) is None


def test_our_own_items_are_all_different_and_wrong_answers_are_none_of_the_right_ones() -> None:
    items = read_items(OURS)
    assert len({(item.ask, item.begin) for item in items}) == len(items) >= 60
    assert all(item.right.strip() != item.wrong.strip() for item in items)
    assert {"arithmetic", "name", "number", "negation", "sign", "code"} <= {item.kind for item in items}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no items"),
        ("{", "line 1"),
        ('{"kind": "a"}', "texts kind, ask, begin, right, wrong"),
        ("[]", "line 1"),
    ],
)
def test_a_file_that_holds_no_items_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(text)
    with pytest.raises(BenchError, match=message):
        read_items(file)
    with pytest.raises(BenchError, match="cannot be read"):
        read_items(tmp_path / "none.jsonl")


@pytest.mark.parametrize("name", ["adversarial-demo", "adversarial-tiny"])
def test_the_docs_tell_what_the_result_files_hold(name: str) -> None:
    told = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    page = (ROOT / "docs" / "evaluation.md").read_text()
    assert f"of {told['asked']}, {len(told['left_out'])} left out" in page
    for one in (*told["verifiers"].values(), *told["gate"].values()):
        low, high = one["interval"]
        assert f"{one['count']} of {one['of']}, {one['share']:.0%} ({low:.0%}..{high:.0%})" in page


async def measured(config: Path, items: list[dict[str, Any]], *verifiers: str) -> tuple[dict[str, Any], str]:
    file = config.parent / "items.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    path = await measure_adversarial(config, file, verifiers, 8, Results(config.parent / "out", "adversarial"))
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


async def test_the_files_say_what_was_let_through_and_what_was_left_out(config: Path) -> None:
    """A first run tells what the random target would say, the second one takes that for right."""
    loose, shut = '{"type": "fly", "entropy_threshold": 0}', '{"type": "fly", "entropy_threshold": 10}'
    guess = {"kind": "word", "ask": "once upon a time", "begin": "the", "right": " fox", "wrong": " brown"}
    told, _ = await measured(config, [guess], "strict")
    [left] = told["left_out"]
    assert (told["asked"], told["planted"], told["verifiers"]["strict"]["share"]) == (1, 0, None)
    right = guess | {"right": left["choice"]}
    told, table = await measured(config, [right, guess], "strict", loose, shut, '{"type": "typical", "epsilon": 1e-9}')
    assert (told["asked"], told["planted"], len(told["left_out"])) == (2, 1, 1)
    strict, opened, closed, typical = told["verifiers"].values()
    assert (strict["count"], opened["count"], closed["count"], typical["count"]) == (0, 1, 0, 1)
    assert (opened["rules"], closed["held"], typical["rules"]) == ({"deferred": 1}, {"gate": 1}, {"typical": 1})
    assert opened["kinds"]["word"]["of"] == 1
    [sample] = told["samples"]
    assert "brown" in sample["drafted"]
    assert sample["gap"] < 0 < sample["probability"] < 1
    assert sample["entropy"] > 0
    assert "1 of 1" in table
    assert "the target's own choice is another one" in table
