"""The whole way, from prompts to files, with a tiny random pair."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.company import neighbours
from benchmarks.datasets import Prompt, load
from benchmarks.http_cost import http_cost, open_behind_http
from benchmarks.http_door import HttpDoor, RefusedError
from benchmarks.matrix import GREEDY, settings_matrix
from benchmarks.results_file import Results
from benchmarks.rounds import commit_milliseconds, evidence_shares
from benchmarks.samples import Spread
from benchmarks.speed import Plan
from benchmarks.speed_run import SpeedRun
from benchmarks.stack import open_stack
from tests.server.listening import listening
from tests.server.serving import KEY
from tests.server.test_assembly import save_pair

STRICT, FLY = settings_matrix(["strict", '{"type": "fly", "window": 2}'], ["auto"], ["6"])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The draft is the target itself, so drafts are accepted."""
    folder = save_pair(tmp_path / "target")
    models = {"target": {"source": str(folder), "device": "cpu"}, "draft": {"source": "target", "device": "cpu"}}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"models": models, "kv_cache": {"tokens": 4096}, "max_context": 256}))
    return file


@pytest.fixture
def prompts(tmp_path: Path) -> list[Prompt]:
    file = tmp_path / "mine.jsonl"
    texts = ["once upon a time", "the quick brown fox", "count to four", "the sea is wide"]
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return load([str(file)])


def run_of(prompts: list[Prompt], folder: Path, *clients: int) -> SpeedRun:
    plan = Plan(prompts[:2], [STRICT, FLY], concurrency=clients or (1,), max_tokens=8)
    return SpeedRun(plan, Results(folder, "speed"), ["mine"])


def rows_of(path: Path, setting: str) -> list[dict[str, Any]]:
    return [row for row in json.loads(path.read_text())["summary"] if row["setting"] == setting]


async def test_a_run_in_process_compares_every_prompt_with_off(
    config: Path, prompts: list[Prompt], tmp_path: Path
) -> None:
    path = await run_of(prompts, tmp_path / "out", 1, 2).in_process(config)
    written = json.loads(path.read_text())
    assert [len(rows_of(path, name)) for name in ("off", STRICT.name, FLY.name)] == [2, 2, 2]
    assert all(row["differing"] == 0 for row in rows_of(path, STRICT.name))
    assert all(row["ratio"]["min"] > 0 and row["tau"] > 1 for row in rows_of(path, STRICT.name))
    assert all(row["ratio"] is None for row in rows_of(path, "off"))
    assert sum(sample["cold_seconds"] is not None for sample in written["samples"]) == 3  # one of each unit
    assert {sample["tokens"] for sample in written["samples"] if sample["concurrency"] == 1} == {8}
    assert written["configuration"]["models"]["models.draft"]["weights"]
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".json", ".md", ".png"}


async def test_a_run_over_http_reads_the_same_figures_from_a_server(prompts: list[Prompt], tmp_path: Path) -> None:
    async with listening() as (_, url):
        path = await run_of(prompts, tmp_path / "out").over_http(f"{url}/", KEY)
    (strict,) = rows_of(path, STRICT.name)
    assert strict["differing"] == 0
    assert strict["ratio"]["median"] > 0
    assert strict["tau"] >= 1


async def test_a_server_that_refuses_is_quoted(tmp_path: Path, prompts: list[Prompt]) -> None:
    async with listening() as (_, url):
        door = HttpDoor(url, "org/tiny", KEY)
        try:
            with pytest.raises(RefusedError, match=r"HTTP 400: .*num_draft_tokens"):
                await door.ask(["hello"], {"num_draft_tokens": 9999}, 4)
        finally:
            door.close()
        with pytest.raises(RefusedError, match="gives no model"):
            await run_of(prompts, tmp_path).over_http(url, "wrong")


async def test_http_and_engine_give_one_answer_and_their_rates_are_compared(
    config: Path, prompts: list[Prompt]
) -> None:
    async with open_behind_http(config) as (stack, door):
        text, fields = prompts[0].text, {**GREEDY, **STRICT.fields}
        (inside,), (outside,) = [(await one.ask([text], fields, 8)).answers for one in (stack, door)]
        assert (inside.tokens, inside.prompt_tokens) == (outside.tokens, outside.prompt_tokens)
        assert inside.speculated.round_tokens == outside.speculated.round_tokens
        assert isinstance(inside.content, tuple)
        assert stack.served.tokenizer.decode(inside.content, skip_special_tokens=True) == outside.content
        found = await http_cost(stack, door, prompts[:2], STRICT, [1, 2], 8)
    assert set(found) == {"1 clients", "2 clients"}
    assert all(isinstance(spread, Spread) and spread.min > 0 for spread in found.values())


async def test_rounds_and_company_are_measured_on_the_engine(config: Path, prompts: list[Prompt]) -> None:
    async with open_stack(config) as stack:
        shares = await evidence_shares(stack, prompts[:1], 40)
        assert shares["greedy"]["median_share"] > 0
        eight = [Prompt("x", str(i), f"{prompts[i % 4].text} {i}") for i in range(8)]
        commit = await commit_milliseconds(stack, eight, 40)
        assert commit["rounds"] == 0 or 0 < commit["median_ms"] <= commit["worst_ms"]
        beside = await neighbours(stack, prompts[:3], STRICT, company=2, max_tokens=6)
        assert len(beside["each"]["median"]) == 3
        assert beside["median_pause_ratio"].min > 0
        assert stack.engine.stats().running == 0
        with pytest.raises(ValueError, match="need 4 prompts"):
            await neighbours(stack, prompts[:3], STRICT, company=3, max_tokens=6)
