"""The live view: its figures are those of /metrics, and it asks only while somebody looks."""

import random
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect
from prometheus_client.parser import text_string_to_metric_families

from tests.server.serving import chat_body, ok
from tests.server.web.visitor import Visitor, ask

FIGURES = """async ([before, after, seconds]) => {
    const { parse } = await import("/web/js/prometheus.js");
    const { Readings } = await import("/web/js/live_figures.js");
    const readings = new Readings();
    readings.add(100, parse(before));
    readings.add(100 + seconds, parse(after));
    return readings.figures();
}"""


def test_charts_fill_while_requests_run(visitor: Visitor, api: httpx.Client) -> None:
    page = visitor.open()
    page.clock.install()
    page.locator("#tab-live").click()
    expect(page.locator(".chart canvas")).to_have_count(9)
    expect(page.locator(".chart-values dd").first).to_have_text("–")  # one reading makes no rate
    for verifier in ("strict", "lossy"):
        ok(api.post("/v1/chat/completions", json=chat_body(verifier=verifier, max_tokens=40)))
    page.clock.fast_forward(2000)
    charts = page.locator(".chart")
    for title in ("Throughput", "Speculation", "Drafts", "Time to first token", "Whole answers", "KV cache"):
        value = charts.filter(has_text=title).locator("dd").first
        expect(value).not_to_have_text("–", timeout=10_000)


def test_nothing_is_polled_while_nobody_looks(visitor: Visitor) -> None:
    page = visitor.open()
    page.clock.install()
    page.clock.fast_forward(10_000)
    assert "/metrics" not in visitor.paths
    with page.expect_response("**/metrics"):
        page.locator("#tab-live").click()
    with page.expect_response("**/metrics"):
        page.clock.fast_forward(2000)
    page.locator("#tab-playground").click()
    before = visitor.paths.count("/metrics")
    assert before >= 2
    page.clock.fast_forward(10_000)
    ask(page, "once upon a time", max_tokens=4)  # by when a poll would long have been seen
    assert visitor.paths.count("/metrics") == before


def test_charts_come_once_what_draws_them_can_be_had(visitor: Visitor) -> None:
    visitor.expected.add(503)
    page = visitor.open()
    page.clock.install()
    page.route("**/uPlot.esm.js*", lambda route: route.fulfill(status=503), times=1)
    page.locator("#tab-live").click()
    expect(page.locator("#live .notice")).to_contain_text("cannot be reached")
    page.clock.fast_forward(2000)
    expect(page.locator(".chart canvas")).to_have_count(9)
    expect(page.locator("#live .notice")).to_have_count(0)


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
    figures = page.evaluate(FIGURES, [before, after, 5])
    assert figures["throughput"] == pytest.approx(24.0)
    accepted, rounds = (sum(report[name] for report in reports) for name in ("accepted_tokens", "rounds"))
    assert figures["tau"] == pytest.approx(1 + accepted / rounds)
    assert figures["accepted"] == pytest.approx(100 * accepted / sum(report["draft_tokens"] for report in reports))
    assert figures["loosened"] == pytest.approx(100 * reports[0]["loosened_tokens"]["lenient"] / 120)
    assert 0 < figures["wholeP50"] <= figures["wholeP95"]
    assert figures["running"] == 0
    assert figures["kvCached"] == pytest.approx(
        100 * total(after, "slipstream_kv_blocks", state="cached") / total(after, "slipstream_kv_blocks_limit")
    )


SPEEDS = """async (readings) => {
    const { Readings } = await import("/web/js/live_figures.js");
    const { parse } = await import("/web/js/prometheus.js");
    const kept = new Readings();
    return readings.map(([at, text]) => {
        const goesOn = kept.add(at, parse(text));
        return [goesOn, kept.figures().throughput, kept.figures().firstP50];
    });
}"""


def scrape(tokens: int, quick: int, slow: int) -> str:
    name = "gen_ai_server_time_to_first_token_seconds_bucket"
    counts = {"0.1": quick, "10": quick + slow, "+Inf": quick + slow}
    lines = [f'{name}{{le="{bound}"}} {count}' for bound, count in counts.items()]
    return "\n".join([f'slipstream_generated_tokens_total{{verifier="strict"}} {tokens}', *lines])


def test_figures_start_afresh_after_a_time_in_which_nobody_looked(visitor: Visitor) -> None:
    """Two hours at 100 tokens a second, of slow answers, and then silence: nothing of it is today's rate."""
    readings = [(at, scrape(at, at, 0)) for at in (0, 2, 4)]
    readings += [(at, scrape(720_000, 4, 1000)) for at in (7200, 7202, 7230, 7231)]
    figures = visitor.open().evaluate(SPEEDS, readings)
    assert figures[:3] == [[False, None, None], [True, 1, 0.05], [True, 1, 0.05]]
    assert figures[3:] == [[False, None, None], [True, 0, None], [False, None, None], [True, 0, None]]


def test_figures_start_afresh_when_the_server_or_the_clock_does(visitor: Visitor) -> None:
    readings = [(0, scrape(100, 5, 5)), (2, scrape(40, 1, 0)), (4, scrape(60, 3, 0)), (3, scrape(70, 4, 0))]
    figures = visitor.open().evaluate(SPEEDS, readings)
    assert figures == [[False, None, None], [False, None, None], [True, 10, 0.05], [False, None, None]]


def test_lines_break_off_where_nobody_looked(visitor: Visitor) -> None:
    drawn = visitor.open().evaluate(
        """async (text) => {
            const { Live } = await import("/web/js/live.js");
            const { parse } = await import("/web/js/prometheus.js");
            const live = new Live(document.createElement("div"), {});
            let shown = null;
            live.charts = [{ show: (times, rows) => (shown = [times, rows.map(({ running }) => running ?? null)]) }];
            for (const at of [100, 102, 150]) live.add(at, parse(text));
            const [times, running] = structuredClone(shown);
            live.add(90, parse(text));
            return [times, running, shown[0]];
        }""",
        "slipstream_requests_running 1",
    )
    assert drawn == [[100, 102, pytest.approx(102.001), 150], [1, 1, None, 1], [90]]


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
