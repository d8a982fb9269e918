"""The audit of a whole server: what it replays and leaves alone, what /v1/audit says, and the guard."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

from core.provenance import FinishReason
from core.verifiers.params import FlyParams
from server.audit.auditor import Auditor
from server.audit.replay import Findings
from server.audit.settings import AuditSettings
from server.generation import Generation
from tests.server.asgi import Exchange, until
from tests.server.serving import (
    MODEL,
    chat,
    complete,
    completion_body,
    error_of,
    ok,
    only_ascii,
    running,
    serve_config,
)
from tests.tiny import make_request

WILD = {"type": "fly", "entropy_threshold": 0.0, "window": 0}
ASKING = {"verifier": WILD, "max_tokens": 80, "logit_bias": only_ascii(), "draft_length": "fixed"}


@asynccontextmanager
async def auditing(**settings: Any) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    audit = AuditSettings(**{"sample_rate": 1.0, "quiet_seconds": 0.05, "max_positions": 4, **settings})
    async with running(serve_config(audit=audit)) as (app, client):
        yield app, client


async def report(client: httpx.AsyncClient) -> dict[str, Any]:
    return ok(await client.get("/v1/audit"))


async def audited(client: httpx.AsyncClient, answers: int) -> dict[str, Any]:
    """The report once so many answers have been replayed."""

    async def replayed() -> bool:
        return bool(sum(one["answers"] for one in (await report(client))["verifiers"]) >= answers)

    await until(replayed, 60)
    return await report(client)


def samples_of(metrics: str) -> dict[str, float]:
    """fly's samples of the audit, by name."""
    families = text_string_to_metric_families(metrics)
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("slipstream_audit") and sample.labels.get("verifier") == "fly"
    }


async def test_a_loosened_answer_is_replayed_and_told_of() -> None:
    async with auditing() as (app, client):
        answer = await complete(client, **ASKING)
        loosened = sum(answer["speculation"]["loosened_tokens"].values())
        assert loosened > 0
        told = await audited(client, 1)
        (one,) = told["verifiers"]
        assert one["verifier"] == FlyParams(**WILD).model_dump()
        assert one["loosened_tokens"] == loosened
        assert 0 < one["audited_tokens"] <= min(loosened, 4)
        assert one["reconverged_share"] == round(one["reconverged_tokens"] / one["audited_tokens"], 4)
        assert one["interval"][0] <= one["reconverged_share"] <= one["interval"][1]
        gap = one["logprob"]
        assert gap["gap"] == pytest.approx(gap["own"] - gap["delivered"], abs=2e-4)
        samples = samples_of((await client.get("/metrics")).text)
        assert samples["slipstream_audit_answers_total"] == 1
        assert samples["slipstream_audit_audited_tokens_total"] == one["audited_tokens"]
        assert samples.get("slipstream_audit_reconverged_tokens_total", 0) == one["reconverged_tokens"]
        assert samples["slipstream_audit_logprob_gap_sum"] == pytest.approx(max(0, gap["gap"]), abs=1e-3)
        assert samples["slipstream_audit_own_surprisal_total"] == pytest.approx(-gap["own"], abs=1e-4)
        assert samples["slipstream_audit_delivered_surprisal_total"] == pytest.approx(-gap["delivered"], abs=1e-4)
        assert samples["slipstream_audit_demoted"] == 0
        schema = app.openapi()
        shape = schema["paths"]["/v1/audit"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        Draft202012Validator({**shape, "components": schema["components"]}).validate(told)


async def test_counters_tell_of_a_gap_below_0_too() -> None:
    async with auditing() as (app, client):
        auditor: Auditor = app.state.readiness.model().auditor
        assert auditor.observer is not None
        auditor.observer.on_audit("fly", Findings(1, (True,), delivered_logprob=-0.5, own_logprob=-0.75))
        samples = samples_of((await client.get("/metrics")).text)
        own, delivered = (samples[f"slipstream_audit_{whose}_surprisal_total"] for whose in ("own", "delivered"))
        assert delivered - own == pytest.approx(-0.25)
        assert samples["slipstream_audit_logprob_gap_sum"] == 0


async def test_replays_show_in_nobodys_figures() -> None:
    async with auditing() as (app, client):
        await complete(client, **ASKING)
        engine = app.state.readiness.model().engine
        before = engine.stats()
        metrics = (await client.get("/metrics")).text
        await audited(client, 1)
        after = engine.stats()
        assert (after.rounds, after.finished) == (before.rounds, before.finished)
        assert after.blocks_cached == before.blocks_cached
        assert _counters(await client.get("/metrics")) == _counters_of(metrics)


def _counters(response: httpx.Response) -> list[str]:
    return _counters_of(response.text)


def _counters_of(metrics: str) -> list[str]:
    """Lines of all but the audit's own instruments and the KV blocks, which replays really use."""
    lines = [line for line in metrics.splitlines() if not line.startswith("#")]
    return [line for line in lines if "audit" not in line and "kv_blocks" not in line]


async def test_strict_off_and_unloosened_answers_are_left_alone() -> None:
    async with auditing() as (_, client):
        for verifier in ("off", "strict", {"type": "fly", "entropy_threshold": 5.0}):
            await complete(client, **{**ASKING, "verifier": verifier})
        told = await report(client)
        assert (told["queue"]["waiting"], told["verifiers"], told["queue"]["skipped"]) == (0, [], {})


async def test_what_cannot_be_replayed_is_counted() -> None:
    async with auditing() as (_, client):
        await complete(client, **{**ASKING, "temperature": 0.8})
        await complete(client, **{**ASKING, "frequency_penalty": 0.5})
        await complete(client, **{**ASKING, "max_tokens": 8, "structured_outputs": {"regex": "[a-z]{4}"}})
        told = await report(client)
        assert told["queue"]["skipped"] == {"sampled": 1, "penalties": 1, "constrained": 1}
        assert told["verifiers"] == []


async def test_an_answer_cut_too_early_to_judge_is_counted() -> None:
    async with auditing() as (_, client):
        await complete(client, **{**ASKING, "max_tokens": 30})

        async def skipped() -> bool:
            return bool((await report(client))["queue"]["skipped"])

        await until(skipped, 60)
        assert (await report(client))["queue"]["skipped"] == {"near_cut": 1}


async def test_an_answer_whose_client_leaves_is_not_kept() -> None:
    async with auditing(quiet_seconds=60.0) as (app, client):
        body = {"model": MODEL, "prompt": "once", **ASKING, "max_tokens": 200, "stream": True}
        exchange = Exchange.post("/v1/completions", body)
        exchange.headers["content-type"] = "application/json"

        def leave(message: dict[str, Any]) -> None:
            if message.get("body"):
                exchange.leave.set()

        exchange.on_message = leave
        await exchange.run(app)
        engine = app.state.readiness.model().engine

        async def gone() -> bool:
            return not engine.stats().running

        await until(gone, 60)
        assert engine.stats().finished == {FinishReason.ABORT: 1, FinishReason.LENGTH: 1}  # and the warm-up
        queue = (await report(client))["queue"]
        assert (queue["waiting"], queue["replaying"]) == (0, False)
        await complete(client, **ASKING)
        queue = (await report(client))["queue"]
        assert (queue["waiting"], queue["replaying"]) == (0, True)


async def test_with_the_audit_off_nothing_runs_and_nothing_is_kept() -> None:
    async with running() as (app, client):
        auditor: Auditor = app.state.readiness.model().auditor
        answer = await complete(client, **ASKING)
        assert sum(answer["speculation"]["loosened_tokens"].values()) > 0
        told = await report(client)
        assert (told["enabled"], told["rule"]["sample_rate"], told["queue"]["waiting"]) == (False, 0.0, 0)
        assert auditor.watch(make_request([5, 6], verifier=FlyParams()), lambda: None, False) is None
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "audit"]


async def test_the_report_needs_the_key() -> None:
    async with auditing() as (_, client):
        for method in ("GET", "DELETE"):
            response = await client.request(method, "/v1/audit", headers={"Authorization": "Bearer wrong"})
            error_of(response, 401)


async def test_the_guard_puts_strict_in_place_and_says_so_until_it_is_lifted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with auditing(floor=1.0, min_tokens=4, allow_reset=True) as (_, client):
        wanted: dict[str, Any] = {}
        for number in range(8):
            await complete(client, f"a story about {number} foxes", **ASKING)
            told = await audited(client, number + 1)
            wanted = next(one for one in told["verifiers"])
            if wanted["demoted"]:
                break
        assert wanted["demoted"]["share"] < 1
        assert "is demoted to strict" in caplog.text

        assert samples_of((await client.get("/metrics")).text)["slipstream_audit_demoted"] == 1
        answer = await chat(client, **ASKING)
        assert answer["speculation"]["verifier"] == "strict"
        assert sum(answer["speculation"]["loosened_tokens"].values()) == 0
        (sentence,) = [line for line in answer["speculation"]["warnings"] if "guard" in line]
        assert "'strict' in place of 'fly'" in sentence
        assert "audit.floor = 1" in sentence
        strict = await chat(client, **{**ASKING, "verifier": "strict"})
        assert answer["choices"][0]["message"] == strict["choices"][0]["message"]

        other = await chat(client, **{**ASKING, "verifier": {**WILD, "entropy_threshold": 0.01}})
        assert other["speculation"]["verifier"] == "fly"  # its own parameters, its own figures

        cleared = ok(await client.delete("/v1/audit"))
        assert cleared["verifiers"] == []
        assert "demotions lifted: fly" in caplog.text
        again = await chat(client, **ASKING)
        assert again["speculation"]["verifier"] == "fly"


async def test_a_demoted_verifier_is_still_checked_as_it_was_asked() -> None:
    async with auditing(floor=1.0, min_tokens=1) as (app, client):
        asked = FlyParams(window=12)
        app.state.readiness.model().auditor.figures.add(asked, Findings(1, (False,), -1.0, -0.5))
        fitting = await complete(client, verifier=asked.model_dump(), num_draft_tokens=16)
        assert fitting["speculation"]["verifier"] == "strict"
        body = completion_body(verifier=asked.model_dump(), num_draft_tokens=4)
        error_of(await client.post("/v1/completions", json=body), 400, "verifier.window")


async def test_who_may_ask_may_not_lift_a_demotion_unless_the_settings_say_so() -> None:
    async with auditing(floor=1.0, min_tokens=1) as (app, client):
        auditor: Auditor = app.state.readiness.model().auditor
        auditor.figures.add(FlyParams(), Findings(1, (False,), -1.0, -0.5))
        response = await client.delete("/v1/audit")
        error_of(response, 403)
        assert "audit.allow_reset" in response.json()["error"]["message"]
        assert auditor.figures.demoted_verifiers() == {"fly"}


async def test_nothing_of_before_is_judged_after_a_reset() -> None:
    async with auditing(allow_reset=True, quiet_seconds=0.5) as (app, client):
        auditor: Auditor = app.state.readiness.model().auditor
        for number in range(3):
            await complete(client, f"a story about {number} foxes", **ASKING)
        assert auditor.replaying
        assert auditor.waiting == 2
        ok(await client.delete("/v1/audit"))
        assert auditor.waiting == 0

        async def done() -> bool:
            return not auditor.replaying

        await until(done, 60)
        assert (await report(client))["verifiers"] == []


async def test_the_same_answer_again_is_no_further_evidence() -> None:
    async with auditing(quiet_seconds=60.0) as (app, client):
        auditor: Auditor = app.state.readiness.model().auditor
        await complete(client, "a story about foxes", **ASKING, n=8)
        assert (auditor.replaying, auditor.waiting) == (True, 0)
        await complete(client, "a story about foxes", **ASKING)
        assert (auditor.waiting, auditor.skipped) == (0, {"repeated": 1})
        await complete(client, "a story about wolves", **ASKING)
        assert auditor.waiting == 1


async def test_a_record_keeps_no_more_than_it_needs() -> None:
    async with auditing(quiet_seconds=60.0) as (app, client):
        prompts = [f"a story about {number} foxes" for number in range(8)]
        await complete(client, prompts, **ASKING, stop=["nowhere to be found"])
        auditor: Auditor = app.state.readiness.model().auditor
        assert auditor.waiting == 7
        gc.collect()
        assert not [one for one in gc.get_objects() if type(one) is Generation]
        assert all(
            len(record.request.prompt) == 0 and record.held > 0 and record.size > record.held
            for _, record in auditor._queue._waiting
        )


async def test_refused_requests_are_not_told_of() -> None:
    async with auditing() as (app, client):
        engine = app.state.readiness.model().engine
        await engine.stop()
        error_of(await client.post("/v1/completions", json=completion_body(**{**ASKING, "temperature": 1.0})), 503)
        assert (await report(client))["queue"]["skipped"] == {}


async def test_about_the_wanted_share_is_watched() -> None:
    async with auditing(sample_rate=0.25) as (app, _):
        auditor: Auditor = app.state.readiness.model().auditor
        auditor._random = random.Random(1)
        request = make_request([5, 6], verifier=FlyParams(), drafter="model", num_draft_tokens=8)
        watched = sum(auditor.watch(request, lambda: None, False) is not None for _ in range(1000))
        assert 200 < watched < 300
