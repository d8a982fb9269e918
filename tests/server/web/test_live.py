"""The live view: its figures are those of /metrics, and it asks only while somebody looks."""

import random
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect
from prometheus_client.parser import text_string_to_metric_families

from tests.server.serving import chat_body, ok
from tests.server.web.visitor import Visitor

FIGURES = """async ([before, after, seconds]) => {
    const { parse } = await import("/web/js/prometheus.js");
    const { Readings } = await import("/web/js/live_figures.js");
    const readings = new Readings();
    readings.add(100, parse(before));
    readings.add(100 + seconds, parse(after));
    return readings.figures();
}"""


def test_charts_fill_while_requests_run(visitor: Visitor, api: httpx.Client) -> None:
    page = visitor.open("#live")
    expect(page.locator(".chart canvas")).to_have_count(9)
    expect(page.locator(".chart-values dd").first).to_have_text("–")  # one reading makes no rate
    for verifier in ("strict", "lossy"):
        ok(api.post("/v1/chat/completions", json=chat_body(verifier=verifier, max_tokens=40)))
    charts = page.locator(".chart")
    for title in ("Throughput", "Speculation", "Drafts", "Time to first token", "Whole answers", "KV cache"):
        value = charts.filter(has_text=title).locator("dd").first
        expect(value).not_to_have_text("–", timeout=10_000)


def test_nothing_is_polled_while_nobody_looks(visitor: Visitor) -> None:
    page = visitor.open()
    page.wait_for_timeout(300)
    assert "/metrics" not in visitor.paths
    page.locator("#tab-live").click()
    expect(page.locator(".chart canvas").first).to_be_visible()
    page.locator("#tab-playground").click()
    page.wait_for_timeout(300)
    before = visitor.paths.count("/metrics")
    assert before >= 1
    page.wait_for_timeout(2500)
    assert visitor.paths.count("/metrics") == before


def total(text: str, name: str, **labels: str) -> float:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def test_figures_are_what_the_responses_report(visitor: Visitor, api: httpx.Client) -> None:
    before = api.get("/metrics").text
    reports = [
        ok(api.post("/v1/chat/completions", json=chat_body(verifier=verifier, max_tokens=60)))["speculation"]
        for verifier in ({"type": "lossy", "threshold": 0.2}, "strict")
    ]
    after = api.get("/metrics").text
    page = visitor.open()
    figures = page.evaluate(FIGURES, [before, after, 10])
    assert figures["throughput"] == pytest.approx(12.0)
    accepted, rounds = (sum(report[name] for report in reports) for name in ("accepted_tokens", "rounds"))
    assert figures["tau"] == pytest.approx(1 + accepted / rounds)
    assert figures["accepted"] == pytest.approx(100 * accepted / sum(report["draft_tokens"] for report in reports))
    assert figures["loosened"] == pytest.approx(100 * reports[0]["loosened_tokens"]["lenient"] / 120)
    assert 0 < figures["wholeP50"] <= figures["wholeP95"]
    assert figures["running"] == 0
    assert figures["kvCached"] == pytest.approx(
        100 * total(after, "slipstream_kv_blocks", state="cached") / total(after, "slipstream_kv_blocks_limit")
    )


def test_the_text_format_is_read_as_prometheus_reads_it(visitor: Visitor, api: httpx.Client) -> None:
    text = api.get("/metrics").text + 'odd{a="x\\"y\\\\z\\nw",b="{},="} 1.5e-3\nbare 2\nedge{le="+Inf"} +Inf\n'
    page = visitor.open()
    read = page.evaluate(
        """async (text) => {
            const { parse } = await import("/web/js/prometheus.js");
            const number = (value) => (value === Infinity ? "inf" : value);
            return [...parse(text)].flatMap(([name, all]) =>
                all.map(({ labels, value }) => [name, labels, number(value)]));
        }""",
        text,
    )
    expected = [
        [sample.name, dict(sample.labels), "inf" if sample.value == float("inf") else sample.value]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(read) == len(expected) > 50
    order: Any = lambda entry: (entry[0], sorted(entry[1].items()))  # noqa: E731
    assert sorted(read, key=order) == sorted(expected, key=order)


def quantiles(page: Page, share: float, now: list[Any], before: list[Any]) -> float | None:
    found: float | None = page.evaluate(
        """async ([share, now, before]) => {
            const { quantile } = await import("/web/js/prometheus.js");
            const bounds = (pairs) => pairs.map(([bound, count]) => [bound ?? Infinity, count]);
            return quantile(share, bounds(now), bounds(before));
        }""",
        [share, now, before],
    )
    return found


def test_quantiles_lie_where_the_observations_do(visitor: Visitor) -> None:
    page = visitor.open()
    generator = random.Random(5)
    bounds = [0.1, 0.5, 1.0, 2.0, 5.0, None]
    old = [generator.uniform(0, 6) for _ in range(50)]
    new = [generator.uniform(0.1, 4) for _ in range(200)]

    def counts(values: list[float]) -> list[list[Any]]:
        return [[bound, sum(value <= (bound or 1e9) for value in values)] for bound in bounds]

    for share in (0.5, 0.9, 0.99):
        found = quantiles(page, share, counts(old + new), counts(old))
        true = sorted(new)[int(share * len(new)) - 1]
        lower = max(bound for bound in (0.0, *bounds[:-1]) if bound < true)  # type: ignore[type-var, operator]
        upper = min(bound for bound in bounds[:-1] if bound >= true)  # type: ignore[type-var, operator]
        assert found is not None
        assert lower <= found <= upper
    assert quantiles(page, 0.5, counts(old), counts(old)) is None
