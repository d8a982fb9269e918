"""The whole way, from prompts to files, with a tiny random pair."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from benchmarks.datasets import Prompt
from benchmarks.footprint import ServerFailedError, usable_port
from benchmarks.http_cost import http_cost, open_behind_http
from benchmarks.http_door import HttpDoor, RefusedError
from benchmarks.matrix import GREEDY, OFF, PRIME_DRAFT, PRIME_TOKENS, settings_matrix
from benchmarks.results_file import Results
from benchmarks.rounds import commit_milliseconds, evidence_shares
from benchmarks.samples import Spread
from benchmarks.speed import Plan, measure
from benchmarks.speed_run import SpeedRun
from benchmarks.stack import Stack, open_stack
from server.errors import ApiError
from tests.benchmarks.conftest import changed
from tests.server.listening import listening
from tests.server.serving import KEY

STRICT, FLY = settings_matrix(["strict", '{"type": "fly", "window": 2}'], ["auto"], ["6"])


def run_of(prompts: list[Prompt], folder: Path, *clients: int) -> SpeedRun:
    plan = Plan(prompts[: 2 * max(clients, default=1)], [STRICT, FLY], concurrency=clients or (1,), max_tokens=8)
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
    # Two of the four prompts are asked alone first, then all by two clients: the others are never new by themselves.
    cold = [sample for sample in written["samples"] if sample["cold_seconds"] is not None]
    assert [(sample["setting"], sample["prompts"]) for sample in cold] == [("off", ["mine/0"]), ("off", ["mine/1"])]
    assert {len(sample["prompts"]) for sample in written["samples"] if sample["concurrency"] == 2} == {4}
    assert {row["concurrency"] for row in written["by_clients"]} == {1, 2}
    assert all(row["strict_ratio"]["min"] > 0 for row in rows_of(path, FLY.name))
    assert all(row["strict_ratio"] is None for row in rows_of(path, STRICT.name))
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


@pytest.mark.parametrize("passes", [1, 2])
async def test_a_prompt_is_cold_once(config: Path, prompts: list[Prompt], passes: int) -> None:
    async with open_stack(config) as stack:
        samples = await measure(stack, Plan(prompts, [STRICT], [1, 2], max_tokens=4, passes=passes, groups=2))
    cold = [sample.prompts for sample in samples if sample.cold_seconds is not None]
    assert len(cold) < len({sample.turn for sample in samples})
    flat = [prompt for names in cold for prompt in names]
    assert len(flat) == len(set(flat))


async def test_priming_leaves_neither_model_a_prompt_to_compute(config: Path, prompts: list[Prompt]) -> None:
    story = "a rather long story " * 8
    model = settings_matrix(["strict"], ["model"], ["4"])[0]
    async with open_stack(config) as stack:
        length = len(stack.encode_chat(story))
        fed = {}
        for name, primers in (("cold", []), ("off", [OFF]), ("both", [OFF, PRIME_DRAFT])):
            texts = [f"{name} {story}"]
            for primer in primers:
                await stack.ask(texts, {**GREEDY, **primer.fields}, PRIME_TOKENS)
            first = len(stack.log.rounds)
            await stack.ask(texts, {**GREEDY, **model.fields}, 6)
            rounds = stack.log.rounds[first:]
            fed[name] = sum(rows for one in rounds for rows, _, _ in one.draft_steps)
        assert fed["off"] > length
        assert fed["both"] < length


async def test_a_server_without_a_draft_model_is_measured_all_the_same(
    config: Path, prompts: list[Prompt], capsys: pytest.CaptureFixture[str]
) -> None:
    changed(config, draft=False)
    async with open_stack(config) as stack:
        samples = await measure(stack, Plan(prompts[:1], settings_matrix(["strict"], ["auto"], ["4"]), max_tokens=4))
    assert [sample.setting for sample in samples] == ["off", "strict K=4"]
    assert "no draft model is primed" in capsys.readouterr().err


async def test_what_is_measured_so_far_survives_an_interruption(
    config: Path, prompts: list[Prompt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(prompts, tmp_path / "out")
    whole = Stack.ask

    async def interrupted(self: Stack, messages: Any, fields: Any, max_tokens: int, clients: int | None = None) -> Any:
        if prompts[1].text in messages:
            raise RuntimeError("the power went")
        return await whole(self, messages, fields, max_tokens, clients)

    monkeypatch.setattr(Stack, "ask", interrupted)
    with pytest.raises(RuntimeError, match="the power went"):
        await run.in_process(config)
    kept = json.loads(run.results.partial.read_text())
    assert kept["complete"] is False
    assert [sample["setting"] for sample in kept["samples"]] == ["off", STRICT.name, FLY.name]
    assert not run.results.path(".json").exists()


async def test_a_field_that_a_request_may_not_have_is_named_in_process_too(config: Path) -> None:
    async with open_stack(config) as stack:
        with pytest.raises(ApiError, match="num_draft_tokens"):
            await stack.ask(["hello"], {"num_draft_tokens": -1}, 4)


async def test_a_server_that_tells_no_usage_is_refused() -> None:
    async def answer(_request: Any) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            yield 'data: {"choices": [{"text": "one"}]}\n\n'
            yield "data: [DONE]\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])
    with socket.create_server(("127.0.0.1", 0)) as port:
        http = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        http.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(http.serve(sockets=[port]))
        door = HttpDoor(f"http://127.0.0.1:{port.getsockname()[1]}", "any", path="completions", encode=list)
        try:
            with pytest.raises(RefusedError, match="does not tell how many tokens"):
                await door.ask(["hello"], {}, 4)
        finally:
            door.close()
            http.should_exit = True
            await task


def test_a_port_that_somebody_has_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(ServerFailedError, match=f"port {number} cannot be had"):
            usable_port(number)
        free = usable_port(None)
        assert free not in (0, number)


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
        assert stack.served.language.tokenizer.decode(inside.content, skip_special_tokens=True) == outside.content
        found = await http_cost(stack, door, prompts[:2], STRICT, [1, 2], 8)
    assert set(found) == {"1 clients", "2 clients"}
    assert all(isinstance(spread, Spread) and spread.min > 0 for spread in found.values())


async def test_rounds_are_measured_on_the_engine(config: Path, prompts: list[Prompt]) -> None:
    async with open_stack(config) as stack:
        shares = await evidence_shares(stack, prompts[:1], 40)
        assert shares["greedy"]["median_share"] > 0
        eight = [Prompt("x", str(i), f"{prompts[i % 4].text} {i}") for i in range(8)]
        commit = await commit_milliseconds(stack, eight, 80)
        assert commit["rounds"] > 0
        assert 0 < commit["median_ms"] <= commit["worst_ms"]
        assert 8 <= commit["mean_tokens"] <= 8 * 16
