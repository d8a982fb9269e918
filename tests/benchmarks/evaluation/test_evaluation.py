"""The whole way with a tiny random pair: asked, stopped, gone on with, judged, written."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from benchmarks.answers import Answer
from benchmarks.errors import BenchError
from benchmarks.evaluation.choice import choose
from benchmarks.evaluation.evaluation import Evaluation, loaded
from benchmarks.evaluation.in_process import InProcess
from benchmarks.evaluation.items import Item
from benchmarks.evaluation.journal import Journal
from benchmarks.evaluation.presets import PRESETS
from benchmarks.evaluation.reply import Question, Reply
from benchmarks.evaluation.run import Plan, spread
from benchmarks.evaluation.sandbox import Sandbox, Verdict
from benchmarks.matrix import OFF, Setting, settings_matrix
from benchmarks.results_file import Results
from core.token_store import TokenStore
from server.errors import ApiError
from tests.benchmarks.conftest import changed

STRICT, FLY = settings_matrix(["strict", '{"type": "fly", "window": 0, "entropy_threshold": 0}'], ["model"], ["4"])
WORDS = ["once upon a time", "the quick brown fox", "count to four", "the sea is wide", "a king", "blue and wide"]


@dataclass(frozen=True)
class LetterScorer:
    """Random models say nothing that is right, but some of it has this letter."""

    runs_code: ClassVar[bool] = False

    def judge(self, answer: str, sandbox: Sandbox | None) -> Verdict:
        return Verdict("o" in answer)


def items(scored: int = 4) -> list[Item]:
    return [
        Item("sums" if n < scored else "talk", f"item/{n}", words, LetterScorer() if n < scored else None)
        for n, words in enumerate(WORDS)
    ]


def evaluation(folder: Path, settings: list[Setting] | None = None, **changes: Any) -> Evaluation:
    options: dict[str, Any] = {"items": items(), "clients": 2, "max_tokens": 12, **changes}
    plan = Plan(settings=settings or [OFF, STRICT, FLY], **options)
    return Evaluation(plan, Results(folder, "evaluation"), ["mine"], drawn=False)


def with_speculation(config: Path, **settings: Any) -> None:
    written = yaml.safe_load(config.read_text())
    written.setdefault("speculation", {}).update(settings)
    config.write_text(yaml.safe_dump(written))


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return found


def without_times(content: dict[str, Any]) -> dict[str, Any]:
    rows = [{key: value for key, value in row.items() if not key.endswith("_speedup")} for row in content["summary"]]
    answers = [{key: value for key, value in answer.items() if key != "speedup"} for answer in content["answers"]]
    return {**content, "summary": rows, "answers": answers, "date": None}


async def test_every_item_is_answered_under_every_setting_and_compared_with_off(config: Path, tmp_path: Path) -> None:
    found = await evaluation(tmp_path / "out").in_process(config)
    rows = {(row.group, row.setting): row for row in found.rows}
    assert {group for group, _ in rows} == {"sums", "talk", "all"}
    strict, fly = rows["all", STRICT.name], rows["all", FLY.name]
    assert (strict.items, strict.equal, strict.agreement, strict.length) == (6, 1.0, 1.0, 1.0)
    assert strict.score == rows["all", OFF.name].score
    assert rows["talk", FLY.name].score is None
    assert strict.tau is not None
    assert fly.tau is not None
    assert fly.tau > strict.tau >= 1
    assert fly.equal == 0.0
    assert fly.score is not None
    assert strict.score is not None
    assert fly.recovery == pytest.approx(fly.score / strict.score)
    assert fly.interval is not None
    assert strict.interval == (1.0, 1.0)
    assert rows["all", OFF.name].tau is None
    assert strict.estimated_speedup is not None
    assert strict.measured_speedup is not None
    assert rows["sums", STRICT.name].measured_speedup is None  # times are those of whole groups
    assert fly.loosened["deferred"] > 10
    content = written(tmp_path / "out")
    assert content["complete"] is True
    assert len(content["answers"]) == 18
    assert "| all |" in (tmp_path / "out" / "evaluation.md").read_text()
    assert not (tmp_path / "out" / "evaluation.json.partial").exists()


async def test_a_run_that_was_killed_goes_on_and_says_the_same(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await evaluation(tmp_path / "whole").in_process(config)
    asked = InProcess.ask
    count = 0

    async def failing(self: InProcess, prompt: str, fields: Any, max_tokens: int) -> tuple[Reply, Answer | None]:
        nonlocal count
        count += max_tokens > 4  # not those that prime
        if count > 7:
            raise RuntimeError("the power went")
        return await asked(self, prompt, fields, max_tokens)

    monkeypatch.setattr(InProcess, "ask", failing)
    with pytest.raises(RuntimeError, match="the power went"):
        await evaluation(tmp_path / "parts").in_process(config)
    journal = tmp_path / "parts" / "evaluation.answers.jsonl"
    kept = journal.read_text().count('"key"')
    assert 0 < kept <= 7
    with journal.open("a") as file:
        file.write('{"key": "cut off in the mid')
    count = -100
    await evaluation(tmp_path / "parts").in_process(config)
    assert 100 + count == 18 - kept + 6  # off once more, for its time beside fly's
    assert without_times(written(tmp_path / "parts")) == without_times(written(tmp_path / "whole"))


async def test_nothing_is_asked_twice_and_other_questions_have_other_answers(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await evaluation(tmp_path).in_process(config)
    lines = (tmp_path / "evaluation.answers.jsonl").read_text().count('"key"')
    await evaluation(tmp_path).in_process(config)
    assert (tmp_path / "evaluation.answers.jsonl").read_text().count('"key"') == lines == 18
    await evaluation(tmp_path, max_tokens=10).in_process(config)
    assert (tmp_path / "evaluation.answers.jsonl").read_text().count('"key"') == 36
    await evaluation(tmp_path, [OFF, FLY], max_tokens=10, seeds=(1,), temperature=1.0).in_process(config)
    assert (tmp_path / "evaluation.answers.jsonl").read_text().count('"key"') == 48


async def test_another_default_or_memory_changes_only_what_depends_on_it(config: Path, tmp_path: Path) -> None:
    path, fly = tmp_path / "evaluation.answers.jsonl", settings_matrix(["fly"], ["model"], ["8"])[0]
    await evaluation(tmp_path, [OFF, STRICT, fly]).in_process(config)
    with_speculation(config, verifiers={"fly": {"entropy_threshold": 0.0}})
    await evaluation(tmp_path, [OFF, STRICT, fly]).in_process(config)
    asked = [json.loads(line)["setting"] for line in path.read_text().splitlines() if '"key"' in line]
    assert sorted(asked) == sorted(6 * [OFF.name, OFF.name, STRICT.name, fly.name, fly.name])
    async with loaded(config, 2) as asker:
        requests: list[dict[str, Any]] = [
            {"verifier": {"type": "csd", "ratio": 0.1}},
            {"verifier": "hybrid"},
            fly.fields,
        ]
        before = [asker.particular(fields) for fields in requests]
        asker.stack.runtime.memory.record("model", 3, 4)
        asker.stack.runtime.memory.merge_round()
        after = [asker.particular(fields) for fields in requests]
        assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]


async def test_a_configured_length_decides_only_for_who_does_not_say(config: Path) -> None:
    """And costs only where a length is weighed with them."""
    asked: list[dict[str, Any]] = [
        {"verifier": "off"},
        {"verifier": "fly"},
        {"verifier": "fly", "num_draft_tokens": 9},
        {"verifier": "strict", "num_draft_tokens": 9, "draft_length": "fixed", "drafter": "model"},
        {"verifier": "fly", "num_draft_tokens": 9, "draft_length": "fixed", "drafter": "auto"},
    ]

    async def keys() -> list[Any]:
        async with loaded(config, 2) as asker:
            return [asker.particular(fields) for fields in asked]

    def same(one: list[Any], other: list[Any]) -> list[bool]:
        return [a == b for a, b in zip(one, other, strict=True)]

    first = await keys()
    with_speculation(config, num_draft_tokens=5)
    second = await keys()
    assert same(first, second) == [True, False, True, True, True]
    with_speculation(config, loose_company=3)
    third = await keys()
    assert same(second, third) == [True, False, False, True, True]
    with_speculation(config, allowed_drafters=["prompt_lookup", "model"])
    assert same(third, await keys()) == [True, False, False, True, False]


async def test_another_datastore_changes_what_loose_answers_depend_on(config: Path) -> None:
    verifiers = ("off", "strict", "fly", "lossy", "typical", "hybrid")
    async with loaded(config, 2) as asker:
        found = []
        for store in (None, TokenStore([[5, 6, 7]]), TokenStore([[5, 6, 8]]), None):
            asker.stack.runtime.store = store
            found.append([asker.particular({"verifier": verifier}) for verifier in verifiers])
    without, one, other, again = found
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, True, False, False, False, False]
    assert [a == b for a, b in zip(without, one, strict=True)] == [True, True, False, False, False, False]
    assert without == again
    async with loaded(config, 2) as asker:
        asked = {"verifier": "strict", "drafter": "datastore"}  # the same answers, in rounds of another length
        keys = []
        for tokens in ([5, 6, 7], [5, 6, 8]):
            asker.stack.runtime.store = TokenStore([tokens])
            keys.append(asker.particular(asked))
        assert keys[0] != keys[1]


async def test_only_times_of_one_run_are_compared(config: Path, tmp_path: Path) -> None:
    await evaluation(tmp_path, [OFF, STRICT]).in_process(config)
    path = tmp_path / "evaluation.answers.jsonl"
    told = [json.loads(line) for line in path.read_text().splitlines()]
    for record in told:
        if "rate_key" in record:
            record["rate"] = 1.0 if record["setting"] == OFF.name else 7.0  # of a machine that was much slower then
    path.write_text("".join(json.dumps(record) + "\n" for record in told))
    again = await evaluation(tmp_path, [OFF, STRICT]).in_process(config)
    assert {row.setting: row.measured_speedup for row in again.rows if row.group == "all"}[STRICT.name] == 7.0
    found = await evaluation(tmp_path, [OFF, STRICT, FLY]).in_process(config)
    measured = {row.setting: row.measured_speedup for row in found.rows if row.group == "all"}
    assert measured[STRICT.name] == 7.0
    assert measured[FLY.name] is not None
    assert measured[FLY.name] < 100, "fly's speed now, by off's of then, which said 1 token per second"
    assert path.read_text().count('"key"') == 4 * 6, "off answered once more"


def test_an_answer_is_found_again_although_the_memory_has_learnt_from_it(tmp_path: Path) -> None:
    learnt = itertools.count()
    question = Question(items()[0], Setting("csd", {"verifier": "csd"}), 0)
    with Journal(tmp_path / "answers.jsonl", "models", {}, lambda fields: next(learnt)) as journal:
        assert journal.reply(question) is None
        journal.add(question, Reply("blue", 1, 3, False))
        assert journal.reply(question) == Reply("blue", 1, 3, False)
    assert next(learnt) == 1


async def test_seeds_are_shared_with_off(config: Path, tmp_path: Path) -> None:
    run = evaluation(tmp_path, [OFF, STRICT], seeds=(3, 4), temperature=1.0)
    found = await run.in_process(config)
    row = next(row for row in found.rows if (row.group, row.setting) == ("all", STRICT.name))
    assert (row.items, row.answers, row.equal) == (6, 12, 1.0)
    by_seed = {judged.seed: judged.reply.text for judged in found.judged if judged.item.name == "item/0"}
    assert by_seed[3] != by_seed[4]


async def test_without_time_for_everything_the_rest_is_said_to_be_missing(config: Path, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no time for a single item"):
        await evaluation(tmp_path, minutes=0.0).in_process(config)
    many = [Item("talk", f"item/{n}", f"{WORDS[n % 6]} {n}") for n in range(10)]
    await evaluation(tmp_path, items=many[:8], clients=2).in_process(config)
    await evaluation(tmp_path, items=many, clients=2, minutes=0.0).in_process(config)
    content = written(tmp_path)
    assert content["complete"] is False
    assert content["items"] == {"asked for": 10, "answered under every setting": 8}
    assert "(without 2 of its items)" in content["title"]


async def test_a_prompt_too_long_for_the_context_is_left_out_by_name(config: Path, tmp_path: Path) -> None:
    long = Item("talk", "item/long", "the sea is wide and blue " * 200)
    found = await evaluation(tmp_path, items=[*items(), long]).in_process(config)
    assert len({judged.item for judged in found.judged}) == 6
    content = written(tmp_path)
    assert content["too_long"] == ["item/long"]
    assert content["complete"] is True


async def test_two_runs_do_not_write_to_one_file(config: Path, tmp_path: Path) -> None:
    run = evaluation(tmp_path)
    from benchmarks.evaluation.journal import Journal

    with (
        Journal(run.results.path(".answers.jsonl"), {}, {}),
        pytest.raises(BenchError, match="another run is writing"),
    ):
        await run.in_process(config)


async def test_more_clients_than_the_engine_runs_at_once_are_refused(config: Path, tmp_path: Path) -> None:
    changed(config, max_running=2)
    with pytest.raises(BenchError, match=r"3 clients, but scheduler\.max_running = 2"):
        await evaluation(tmp_path, clients=3).in_process(config)


async def test_every_preset_is_a_request_that_the_server_takes(config: Path, tmp_path: Path) -> None:
    async with loaded(config, 1) as asker:
        for name, preset in PRESETS.items():
            chosen = choose([name], [], ["auto"], ["15"], [], ours=True)
            assert chosen.settings[0] == OFF
            assert len(chosen.settings) == len(preset.settings) + 1 >= 3, name
            for setting in chosen.settings:
                await asker.check(setting, {"temperature": chosen.temperature, "seed": chosen.seeds[0]})
        assert any("csd loosens nothing" in note for note in asker.notes)
        with pytest.raises(ApiError, match="num_draft_tokens"):
            await asker.check(settings_matrix(["strict"], ["auto"], ["99"])[0], {})


def test_settings_come_from_presets_names_and_fields() -> None:
    def names(*arguments: Any, ours: bool = True) -> list[str]:
        return [setting.name for setting in choose(*arguments, ours=ours).settings]

    assert names([], [], ["auto"], ["15"], []) == ["off", "strict K=15", "fly K=15", "csd K=15", "hybrid K=15"]
    assert names(["fly-k"], ["strict"], ["auto"], ["5"], [])[1:] == [
        *(f"fly(window=4) K={k}" for k in (5, 10, 15, 25)),
        "strict K=5",
    ]
    assert choose(["temperature"], [], [], [], [], ours=True).seeds == (0, 1, 2)
    # A foreign server is sent nothing that nobody asked for.
    assert choose([], [], ["auto"], ["15"], [], ours=False).settings[0].fields == {}
    assert names([], [], ["auto"], ["15"], ['a={"top_k": 1}', "b={}"], ours=False) == ["a", "b"]
    with pytest.raises(BenchError, match="unknown preset 'fly-w'; there are all-verifiers, fly-window"):
        names(["fly-w"], [], [], [], [])
    with pytest.raises(BenchError, match=r"should be NAME=\{"):
        names([], [], [], [], ["a=1"])


def test_tasks_are_spread_evenly_over_the_groups() -> None:
    large = [Item("large", str(n), "") for n in range(6)]
    small = [Item("small", str(n), "") for n in range(2)]
    assert [item.task for item in spread([*large, *small])].index("small") in (1, 2)
    assert sorted(item.name for item in spread([*large, *small])) == sorted(item.name for item in [*large, *small])
