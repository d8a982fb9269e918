"""/metrics tells what answers tell, at every moment, in bounded series."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import Metric

from core.round import RoundResult
from core.sequence import Sequence
from scheduler.events import FinishedEvent, TokensEvent
from server.telemetry.catalogue import METRICS
from server.telemetry.telemetry import Telemetry
from tests.server.asgi import Exchange, until
from tests.server.serving import MODEL, chat, chat_body, complete, make_engine, only_ascii, running
from tests.server.telemetry.scrape import parsed, scraped, total
from tests.tiny import make_request

PLAIN = {"logit_bias": only_ascii()}
LOOSE = {"verifier": {"type": "lossy", "threshold": 0.1}, "drafter": "model", "num_draft_tokens": 4}


async def test_counters_are_the_reports_own_figures(client: httpx.AsyncClient) -> None:
    reports, generated, prompted = [], 0, 0
    for verifier in ("off", "strict", "lossy", "fly"):
        answer = await chat(client, verifier=verifier, max_tokens=40, n=2, **PLAIN)
        reports.append(answer["speculation"])
        generated += answer["usage"]["completion_tokens"]
        prompted += 2 * answer["usage"]["prompt_tokens"]
    families = await scraped(client)
    assert total(families, "slipstream_generated_tokens_total") == generated
    assert total(families, "slipstream_prompt_tokens_total") == prompted
    for field in ("draft_tokens", "accepted_tokens", "bonus_tokens", "rounds"):
        assert total(families, f"slipstream_speculation_{field}_total") == sum(report[field] for report in reports)
    loosened = sum(sum(report["loosened_tokens"].values()) for report in reports)
    assert total(families, "slipstream_speculation_loosened_tokens_total") == loosened > 0
    assert total(families, "slipstream_requests_total") == 8
    off = {"verifier": "off", "drafter": "none", "finish_reason": "length"}
    assert total(families, "slipstream_requests_total", **off) == 2


async def test_the_speedup_over_time_is_that_of_the_answers(client: httpx.AsyncClient) -> None:
    answers = [await chat(client, verifier="strict", max_tokens=40, **PLAIN) for _ in range(3)]
    families = await scraped(client)
    speedups = [answer["speculation"]["estimated_speedup"] for answer in answers]
    assert total(families, "slipstream_speculation_estimated_speedup_sum") == pytest.approx(sum(speedups))
    off, rounds = (total(families, f"slipstream_speculation_{name}_seconds_total") for name in ("off", "round"))
    assert min(speedups) <= off / rounds + 1e-4
    assert off / rounds <= max(speedups) + 1e-4
    await chat(client, verifier="off", max_tokens=10)
    assert total(await scraped(client), "slipstream_speculation_estimated_speedup_count") == 3


async def test_the_warm_up_request_is_in_no_figure(client: httpx.AsyncClient) -> None:
    families = await scraped(client)
    for sample in ("slipstream_generated_tokens_total", "slipstream_requests_total", "slipstream_prompt_tokens_total"):
        assert total(families, sample) == 0
    assert total(families, "slipstream_round_phase_duration_seconds_count") == 0


async def test_families_that_others_search_by_name_are_unique(client: httpx.AsyncClient) -> None:
    await chat(client, **LOOSE, **PLAIN)
    totals = {one.name for family in (await scraped(client)).values() for one in family.samples}
    totals = {name for name in totals if name.endswith("_total")}
    assert {name for name in totals if "generat" in name and "token" in name} == {"slipstream_generated_tokens_total"}
    assert {name for name in totals if "accept" in name} == {"slipstream_speculation_accepted_tokens_total"}
    drafted = {name for name in totals if "draft" in name and "token" in name}
    assert drafted == {"slipstream_speculation_draft_tokens_total"}


async def test_gauges_follow_the_engine(client: httpx.AsyncClient) -> None:
    task = asyncio.create_task(chat(client, max_tokens=150, verifier="off", **PLAIN))

    async def seen_running() -> bool:
        return total(await scraped(client), "slipstream_requests_running") > 0

    await until(seen_running)
    assert _blocks(await scraped(client))["used"] > 0
    await task
    families = await scraped(client)
    assert total(families, "slipstream_requests_running") == total(families, "slipstream_requests_waiting") == 0
    blocks = _blocks(families)
    assert blocks["used"] == 0
    assert blocks["cached"] > 0
    assert sum(blocks.values()) == total(families, "slipstream_kv_blocks_limit") == 200


def _blocks(families: dict[str, Metric]) -> dict[str, float]:
    return {one.labels["state"]: one.value for one in families["slipstream_kv_blocks"].samples}


async def test_a_request_is_one_entry_of_a_histogram_however_many_choices_it_has(client: httpx.AsyncClient) -> None:
    await chat(client, n=2, max_tokens=20, verifier="strict", **PLAIN)
    families = await scraped(client)
    labels = {"gen_ai_operation_name": "chat", "gen_ai_request_model": MODEL, "verifier": "strict"}
    for family in ("request_duration", "time_to_first_token", "time_per_output_token"):
        assert total(families, f"gen_ai_server_{family}_seconds_count", **labels) == 1, family
        assert total(families, f"gen_ai_server_{family}_seconds_sum", **labels) > 0
    assert total(families, "slipstream_speculation_acceptance_length_count", verifier="strict") == 1
    counts = [
        total(families, "slipstream_round_phase_duration_seconds_count", phase=phase)
        for phase in ("draft", "verify", "host", "schedule")
    ]
    assert counts[0] > 0
    assert counts[1] == counts[2] == counts[3] >= counts[0]


async def test_a_phase_that_did_not_happen_is_in_no_histogram(client: httpx.AsyncClient) -> None:
    def counts(families: dict[str, Metric]) -> list[float]:
        name = "slipstream_round_phase_duration_seconds_count"
        return [total(families, name, phase=phase) for phase in ("draft", "verify", "host", "schedule")]

    await chat(client, verifier="off", max_tokens=10, **PLAIN)
    draft, verify, *_ = counts(await scraped(client))
    assert draft == 0
    assert verify > 0
    telemetry = Telemetry()
    telemetry.begin()
    telemetry.on_round(RoundResult((), 0.5, 0.0, 0.0, 0.0, decoding=0, drafting=True), 0.001)  # the draft caught up
    assert counts(parsed(telemetry.exposition()[0].decode())) == [1, 0, 0, 1]


async def test_positions_tell_how_far_drafts_are_accepted(client: httpx.AsyncClient) -> None:
    fixed = {"draft_length": "fixed", "num_draft_tokens": 5, "drafter": "model"}
    report = (await complete(client, max_tokens=60, verifier="strict", **fixed, **PLAIN))["speculation"]
    families = await scraped(client)
    drafted, delivered = (
        [
            total(families, f"slipstream_speculation_position_{name}_total", position=str(position))
            for position in range(1, 65)
        ]
        for name in ("drafted", "delivered")
    )
    assert drafted == sorted(drafted, reverse=True)
    assert delivered == sorted(delivered, reverse=True)
    assert all(some <= every for some, every in zip(delivered, drafted, strict=True))
    assert sum(drafted) == report["draft_tokens"]
    assert sum(delivered) == report["accepted_tokens"] > 0
    assert drafted[5] == 0


async def test_client_text_never_becomes_a_label(client: httpx.AsyncClient) -> None:
    await chat(client, max_tokens=1)
    before = await _series(client)
    for index in range(20):
        await client.post("/v1/chat/completions", json={**chat_body(), "model": f"junk-{index}"})
        await client.post("/v1/chat/completions", json=chat_body(user=f"user-{index}", max_tokens=1))
        await client.get(f"/nothing/{index}")
    assert await _series(client) == before


async def _series(client: httpx.AsyncClient) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    families = await scraped(client)
    return {(one.name, frozenset(one.labels.items())) for family in families.values() for one in family.samples}


async def test_every_series_is_of_a_known_metric_and_carries_known_labels(client: httpx.AsyncClient) -> None:
    for verifier in ("off", "strict", "fly", "csd", "hybrid", "lossy", "typical"):
        await chat(client, verifier=verifier, num_draft_tokens=8, max_tokens=20, **PLAIN)
    assert (await client.post("/v1/chat/completions", json=chat_body("king " * 400))).status_code == 400
    known = {metric.prometheus: metric for metric in METRICS}
    families = await scraped(client)
    families.pop("target_info", None), families.pop("target", None)
    for name, family in families.items():
        metric = known[name]
        assert family.type == metric.kind, name
        labels = {label for one in family.samples for label in one.labels} - {"le"}
        assert labels <= {label.replace(".", "_") for label in metric.labels}, name


async def test_no_counter_exceeds_what_was_delivered_however_answers_end() -> None:
    """Answers of all kinds, every second one left by its client after a few words, while somebody scrapes all along."""
    checked = 0
    async with running() as (app, client):

        async def ask(number: int) -> None:
            verifier = ["off", "strict", "lossy", "fly"][number % 4]
            body = chat_body(f"{number} once", verifier=verifier, num_draft_tokens=8, max_tokens=90, **PLAIN)
            if number // 4 % 2:
                await _leave_after(app, body, number % 3)
            else:
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(number)) for number in range(12)]
            while not all(task.done() for task in tasks):
                _check_wholes(await scraped(client))
                checked += 1
                await asyncio.sleep(0.002)

        async def all_ended() -> bool:
            return total(await scraped(client), "slipstream_requests_total") == 12

        await until(all_ended)
        families = await scraped(client)
    assert checked > 5
    _check_wholes(families)
    assert total(families, "slipstream_requests_total", finish_reason="abort") > 0


async def _leave_after(app: FastAPI, body: dict[str, Any], words: int) -> None:
    """Ask for a stream and leave it when `words` of its parts have come."""
    exchange, seen = Exchange.post("/v1/chat/completions", {**body, "stream": True}), 0

    def count(message: dict[str, Any]) -> None:
        nonlocal seen
        seen += b"content" in message.get("body", b"")
        if seen > words:
            exchange.leave.set()

    exchange.on_message = count
    await exchange.run(app)


def _check_wholes(families: dict[str, Metric]) -> None:
    def count(name: str) -> float:
        return total(families, f"slipstream_{name}_total")

    accepted, bonus = count("speculation_accepted_tokens"), count("speculation_bonus_tokens")
    assert accepted <= count("speculation_draft_tokens")
    assert accepted + bonus <= count("generated_tokens")
    assert count("speculation_loosened_tokens") <= accepted
    assert count("speculation_position_delivered") == accepted
    assert count("speculation_position_drafted") == count("speculation_draft_tokens")


async def test_tokens_of_a_round_that_died_are_in_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sequence of the round has committed its tokens when the second one's commit fails."""
    telemetry = Telemetry()
    telemetry.begin()
    engine = make_engine(telemetry)
    real, commits, delivered = Sequence.commit, 0, 0

    def commit(sequence: Sequence, tokens: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits == 8:
            raise RuntimeError("cut short")
        return real(sequence, tokens)

    async def consume(name: str) -> FinishedEvent:
        nonlocal delivered
        request = make_request([1, 2, 3], request_id=name, max_tokens=20, drafter="model", num_draft_tokens=3)
        async for event in engine.submit(request):
            if isinstance(event, TokensEvent):
                delivered += len(event.tokens)
        assert isinstance(event, FinishedEvent)
        return event

    monkeypatch.setattr(Sequence, "commit", commit)
    await engine.start()
    ends = await asyncio.gather(consume("a"), consume("b"))
    await engine.stop()
    assert {end.reason.value for end in ends} == {"error"}
    assert sum(end.completion_tokens for end in ends) > delivered > 0  # the round did count more
    families = parsed(telemetry.exposition()[0].decode())
    assert total(families, "slipstream_generated_tokens_total") == delivered
    assert total(families, "slipstream_speculation_accepted_tokens_total") <= delivered
    assert total(families, "slipstream_requests_total", finish_reason="error") == 2
