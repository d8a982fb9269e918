"""/metrics tells what answers tell, in bounded series."""

import asyncio

import httpx

from tests.server.asgi import until
from tests.server.serving import chat, chat_body, complete, only_ascii

PLAIN = {"logit_bias": only_ascii()}


async def series(client: httpx.AsyncClient) -> dict[str, float]:
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    lines = [line for line in response.text.splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def total(values: dict[str, float], family: str) -> float:
    return sum(value for name, value in values.items() if name.split("{")[0] == family)


async def test_counters_are_the_reports_own_figures(client: httpx.AsyncClient) -> None:
    reports, generated, prompted = [], 0, 0
    for verifier in ("off", "strict", "lossy", "fly"):
        answer = await chat(client, verifier=verifier, max_tokens=40, n=2, **PLAIN)
        reports.append(answer["speculation"])
        generated += answer["usage"]["completion_tokens"]
        prompted += 2 * answer["usage"]["prompt_tokens"]
    values = await series(client)
    assert total(values, "slipstream_generated_tokens_total") == generated
    assert total(values, "slipstream_prompt_tokens_total") == prompted
    for field in ("draft_tokens", "accepted_tokens", "bonus_tokens", "rounds"):
        assert total(values, f"slipstream_speculation_{field}_total") == sum(report[field] for report in reports)
    loosened = sum(sum(report["loosened_tokens"].values()) for report in reports)
    assert total(values, "slipstream_speculation_loosened_tokens_total") == loosened > 0
    assert total(values, "slipstream_requests_total") == 8
    assert values['slipstream_requests_total{drafter="none",finish_reason="length",verifier="off"}'] == 2


async def test_the_warm_up_request_is_in_no_figure(client: httpx.AsyncClient) -> None:
    values = await series(client)
    assert total(values, "slipstream_generated_tokens_total") == 0
    assert total(values, "slipstream_requests_total") == 0


async def test_families_that_others_search_by_name_are_unique(client: httpx.AsyncClient) -> None:
    await chat(client, verifier="lossy", **PLAIN)
    totals = {name.split("{")[0] for name in await series(client) if name.split("{")[0].endswith("_total")}
    assert {name for name in totals if "generat" in name and "token" in name} == {"slipstream_generated_tokens_total"}
    assert {name for name in totals if "accept" in name} == {"slipstream_speculation_accepted_tokens_total"}
    drafted = {name for name in await series(client) if "draft" in name and "token" in name and "_total" in name}
    assert {name.split("{")[0] for name in drafted} == {"slipstream_speculation_draft_tokens_total"}


async def test_gauges_follow_the_engine(client: httpx.AsyncClient) -> None:
    task = asyncio.create_task(chat(client, max_tokens=150, verifier="off", **PLAIN))

    async def running() -> bool:
        return (await series(client))["slipstream_requests_running"] > 0

    await until(running)
    values = await series(client)
    assert values["slipstream_kv_blocks_used"] > 0
    assert values["slipstream_kv_blocks_total"] == 200
    await task
    values = await series(client)
    assert values["slipstream_requests_running"] == values["slipstream_requests_waiting"] == 0
    assert values["slipstream_kv_blocks_used"] == 0
    assert values["slipstream_kv_blocks_cached"] > 0


async def test_histograms_have_one_entry_per_sequence(client: httpx.AsyncClient) -> None:
    await chat(client, n=2, max_tokens=20, **PLAIN)
    values = await series(client)
    for family in (
        "gen_ai_server_request_duration_seconds",
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "slipstream_speculation_acceptance_length",
    ):
        assert total(values, f"{family}_count") == 2, family
        assert total(values, f"{family}_sum") > 0
    phases = [name for name in values if name.startswith("slipstream_round_phase_duration_seconds_count")]
    assert len(phases) == 3


async def test_client_text_never_becomes_a_label(client: httpx.AsyncClient) -> None:
    await complete(client)
    before = len(await series(client))
    for index in range(20):
        await client.post("/v1/chat/completions", json={**chat_body(), "model": f"junk-{index}"})
        await client.post("/v1/chat/completions", json=chat_body(user=f"user-{index}", max_tokens=1))
        await client.get(f"/nothing/{index}")
    assert len(await series(client)) - before < 30
