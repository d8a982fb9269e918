"""What a real collector receives over OTLP, against what the answers said of themselves."""

import asyncio
import itertools
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from server.telemetry.collector import Collector
from tests.server.asgi import Exchange, until
from tests.server.serving import (
    MODEL,
    chat,
    chat_body,
    complete,
    completion_body,
    only_ascii,
    running,
    stream,
)
from tests.server.telemetry.collector import Received, collecting, just_now, values

PLAIN = {"logit_bias": only_ascii()}
LOOSE = {"verifier": {"type": "lossy", "threshold": 0.1}, "drafter": "model", "num_draft_tokens": 4}
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """The server under test sends to it; everything arrives once the server has stopped, if not before."""
    with collecting() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        yield received


class Log(logging.Handler):
    """What the log would have shown. Pytest's own handler also stands at loggers that tell nobody else."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []
        self.emit = self.records.append  # type: ignore[method-assign]

    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def speculation(span: Any) -> dict[str, Any]:
    """The report as the span has it."""
    prefix = "slipstream.speculation."
    found = {name[len(prefix) :]: value for name, value in values(span.attributes).items() if name.startswith(prefix)}
    loosened = {name.split(".")[1]: found.pop(name) for name in list(found) if name.startswith("loosened_tokens.")}
    return found | {"loosened_tokens": loosened}


def without_none(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if value is not None and name != "warnings"}


async def test_spans_and_metrics_equal_the_reports_of_mixed_requests(collector: Received) -> None:
    async with running() as (_, client):
        asked = [
            chat(client, "one two three", verifier="strict", max_tokens=30, **PLAIN),
            chat(client, "once upon", verifier="off", max_tokens=20, n=2, temperature=1, seed=5, **PLAIN),
            complete(client, "the sea is wide", max_tokens=40, **LOOSE, **PLAIN),
            complete(client, ["a king", "the dog"], verifier="fly", num_draft_tokens=8, max_tokens=25, **PLAIN),
        ]
        answers = await asyncio.gather(*asked)
        chunks = await stream(client, "/v1/chat/completions", chat_body(max_tokens=15, **LOOSE, **PLAIN))
        answers.append({**chunks[-1], "usage": None})
    spans = {values(span.attributes)["gen_ai.response.id"]: span for span in collector.roots()}
    assert len(spans) == len(answers)
    for answer in answers:
        span = spans[answer["id"]]
        assert speculation(span) == without_none(answer["speculation"])
        if usage := answer["usage"]:
            told = values(span.attributes)
            assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
            assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
            assert told["gen_ai.usage.cache_read.input_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    reports = [answer["speculation"] for answer in answers]
    for verifier in ("strict", "off", "lossy", "fly"):
        for name in ("rounds", "draft_tokens", "accepted_tokens", "bonus_tokens"):
            told = collector.total(f"slipstream.speculation.{name.replace('_', '.')}", verifier=verifier)
            assert told == sum(report[name] for report in reports if report["verifier"] == verifier), (verifier, name)
    loosened = sum(report["loosened_tokens"].get("lenient", 0) for report in reports)
    assert collector.total("slipstream.speculation.loosened.tokens", rule="lenient") == loosened > 0
    positions = collector.sums("slipstream.speculation.position.delivered")
    assert sum(positions.values()) == sum(report["accepted_tokens"] for report in reports)
    lengths = collector.histogram("slipstream.speculation.acceptance_length")
    assert sum(count for _, count, _ in lengths) == len(answers)
    assert sum(total for _, _, total in lengths) == pytest.approx(sum(one["mean_accepted_length"] for one in reports))


async def test_a_span_says_what_was_asked_and_how_it_went(collector: Received) -> None:
    async with running() as (_, client):
        answer = await chat(client, max_tokens=9, temperature=0.5, top_k=40, seed=1, n=2, verifier="strict", **PLAIN)
    [root] = collector.roots()
    assert root.name == f"chat {MODEL}"
    assert root.status.code == Status.STATUS_CODE_UNSET
    told = values(root.attributes)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "slipstream",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": False,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": ["length", "length"],
    }
    assert {name: told.get(name) for name in expected} == expected
    assert "error.type" not in told
    children = sorted(
        collector.children(root),
        key=lambda span: (values(span.attributes)["slipstream.sequence"], span.start_time_unix_nano),
    )
    assert [span.name for span in children] == 2 * ["queue", "prefill", "decode"]
    for before, after in itertools.pairwise(children[:3]):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    for span in children:
        assert just_now(span.start_time_unix_nano)
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
        assert span.trace_id == root.trace_id
    assert sum(values(span.attributes).get("slipstream.generated.tokens", 0) for span in children) == 18


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", completion_body(max_tokens=3), f"text_completion {MODEL}"),
        ("/v1/responses", {"model": MODEL, "input": "a king", "max_output_tokens": 3}, f"chat {MODEL}"),
        ("/generate", {"inputs": "a king", "parameters": {"max_new_tokens": 3}}, f"text_completion {MODEL}"),
    ],
)
async def test_every_dialect_has_its_span(collector: Received, path: str, body: dict[str, Any], name: str) -> None:
    async with running() as (_, client):
        assert (await client.post(path, json=body)).status_code == 200
    assert [span.name for span in collector.roots()] == [name]


async def test_a_clients_trace_goes_on_and_its_baggage_does_not(collector: Received) -> None:
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "baggage": "user=somebody"}
    async with running() as (_, client):
        for _ in range(2):
            await client.post("/v1/chat/completions", json=chat_body(max_tokens=2), headers=headers)
        unsampled = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-00"}
        await client.post("/v1/chat/completions", json=chat_body(max_tokens=2), headers=unsampled)
        await client.post("/v1/chat/completions", json=chat_body(max_tokens=2), headers={"traceparent": "rubbish"})
    *continued, begun = collector.roots()
    assert [span.trace_id.hex() for span in continued] == [TRACE, TRACE]  # the unsampled one is not sent
    assert {span.parent_span_id.hex() for span in continued} == {"b7ad6b7169203331"}
    assert begun.trace_id.hex() != TRACE
    assert b"somebody" not in b"".join(span.SerializeToString() for span in collector.spans)


async def test_nothing_a_client_wrote_is_sent(collector: Received) -> None:
    words = "zanzibar"
    async with running() as (_, client):
        await chat(client, f"{words} one", stop=[f"{words} two"], user=f"{words} three", max_tokens=5, **PLAIN)
        refused = chat_body(f"{words} four", verifier=f"{words} five")
        assert (await client.post("/v1/chat/completions", json=refused)).status_code == 400
    sent = b"".join(one.SerializeToString() for one in [*collector.spans, *collector.metrics.values()])
    assert sent
    assert words.encode() not in sent
    assert b"sk-secret" not in sent


async def test_an_abandoned_answer_ends_its_span_with_an_abort(collector: Received) -> None:
    async with running() as (app, client):
        exchange = Exchange.post("/v1/chat/completions", chat_body(max_tokens=200, stream=True, **PLAIN))

        def leave(message: dict[str, Any]) -> None:
            if b"content" in message.get("body", b""):
                exchange.leave.set()

        exchange.on_message = leave
        await exchange.run(app)
        await until(lambda: _idle(client))
        text = (await client.get("/metrics")).text
    [root] = collector.roots()
    told = values(root.attributes)
    assert told["gen_ai.response.finish_reasons"] == ["abort"]
    assert [event.name for event in root.events] == ["abort"]
    assert "error.type" not in told
    assert 'finish_reason="abort"' in text
    assert told["gen_ai.usage.output_tokens"] == collector.total("slipstream.generated.tokens") < 200


async def _idle(client: httpx.AsyncClient) -> bool:
    return "slipstream_requests_running 0.0" in (await client.get("/metrics")).text


async def test_a_preemption_is_an_event_of_the_span(collector: Received) -> None:
    async with running(max_running=8) as (app, client):
        pool = app.state.readiness.model().engine._runtime.pool
        hoard = pool._num_free - 14  # as if others held them: room for little more than one answer
        pool._num_free = 14
        pool.num_blocks -= hoard
        asked = [chat(client, f"{number} once upon a time", max_tokens=120, ignore_eos=True) for number in range(3)]
        await asyncio.gather(*asked)
    events = [event.name for root in collector.roots() for event in root.events]
    assert events.count("preemption") == collector.total("slipstream.preemptions") > 0


async def test_failures_have_a_type_and_only_the_servers_own_are_errors(
    collector: Received, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no forward today")

    async with running() as (_, client):
        too_long = await client.post("/v1/chat/completions", json=chat_body("king " * 400))
        assert too_long.status_code == 400
        monkeypatch.setattr("scheduler.engine.run_round", broken)
        with caplog.at_level(logging.WARNING):
            assert (await client.post("/v1/chat/completions", json=chat_body())).status_code == 500
    theirs, ours = collector.roots()
    assert values(theirs.attributes)["error.type"] == "context_length_exceeded"
    assert theirs.status.code == Status.STATUS_CODE_UNSET
    assert values(ours.attributes)["error.type"] == "engine_error"
    assert ours.status.code == Status.STATUS_CODE_ERROR
    durations = collector.histogram("gen_ai.server.request.duration")
    assert {labels.get("error.type") for labels, _, _ in durations} == {"context_length_exceeded", "engine_error"}
    [line] = [record for record in caplog.records if "an answer failed" in record.getMessage()]
    assert line.trace_id == ours.trace_id.hex()  # type: ignore[attr-defined]


async def test_a_full_queue_is_counted_and_typed(collector: Received) -> None:
    async with running(max_running=1, max_waiting=0) as (_, client):
        bodies = [chat_body(max_tokens=60, n=3), chat_body(max_tokens=60)]
        responses = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
    assert sorted(response.status_code for response in responses) == [200, 429]
    assert collector.total("slipstream.requests.refused") == 1
    types = [values(root.attributes).get("error.type") for root in collector.roots()]
    assert sorted(types, key=str) == [None, "queue_full"]


async def test_gauges_are_right_for_a_collector_that_nobody_scrapes(
    collector: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    async with running() as (_, client):
        async with asyncio.TaskGroup() as group:
            group.create_task(chat(client, max_tokens=200, ignore_eos=True, verifier="off"))

            async def seen_running() -> bool:
                return (
                    "slipstream.requests.running" in collector.metrics
                    and collector.total("slipstream.requests.running") == 1
                )

            await until(seen_running)

        async def seen_idle() -> bool:
            return collector.total("slipstream.requests.running") == 0

        await until(seen_idle)
        blocks = collector.sums("slipstream.kv.blocks")
        assert sum(blocks.values()) == collector.total("slipstream.kv.blocks.limit") == 200


async def test_the_resource_is_what_the_environment_says(collector: Received, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "answers")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.version=9")
    async with running():
        pass
    told = collector.resources[0]
    assert told["service.name"] == "answers"
    assert told["deployment.environment.name"] == "test"
    assert told["service.version"] == "9"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_a_dead_collector_costs_an_answer_nothing_and_a_log_one_line(
    protocol: str, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # bound and never accepting; closed before it is asked
        port = taken.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")

    async def heard() -> bool:
        return bool(log.warnings())

    async with running() as (_, client):
        for _ in range(3):
            await chat(client, max_tokens=3)
        await until(heard)
        for _ in range(3):
            await chat(client, max_tokens=3)
            await asyncio.sleep(0.1)
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 5
    [told] = log.warnings()
    assert f"telemetry cannot be exported to http://127.0.0.1:{port} (" in told
    assert {"grpc": "StatusCode.UNAVAILABLE", "http/protobuf": "Connection refused"}[protocol] in told


async def test_a_collector_that_refuses_is_named_with_its_reason_and_without_the_key(
    monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    class Refuse(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(401, f"no such token: {self.headers['authorization']}")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    refusing = ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=refusing.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{refusing.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{address}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20sk-collector")
    try:
        async with running() as (_, client):
            await chat(client, max_tokens=3)
    finally:
        refusing.shutdown()
        refusing.server_close()
    [told] = log.warnings()
    assert f"to http://{address} (traces: " in told
    assert "401, reason: no such token: ***)" in told


def test_a_password_in_an_address_is_not_logged(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:secret@here:4317")
    Collector().heard("traces", success=False, reason="cannot resolve me:secret@here:4317")
    [told] = log.warnings()
    assert told.startswith(
        "telemetry cannot be exported to http://***@here:4317 (traces: cannot resolve ***@here:4317)"
    )


async def test_without_an_exporter_no_span_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(variable, raising=False)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a span was made")

    monkeypatch.setattr("opentelemetry.sdk.trace.Tracer.start_span", refuse)
    async with running() as (_, client):
        await chat(client, max_tokens=3)


async def test_a_disabled_sdk_serves_answers_and_tells_nothing(
    collector: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    async with running() as (_, client):
        await chat(client, max_tokens=3)
        scrape = await client.get("/metrics")
    assert scrape.status_code == 200
    assert "slipstream_" not in scrape.text
    assert not collector.spans
    assert not collector.metrics
