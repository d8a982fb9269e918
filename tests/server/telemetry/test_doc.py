"""docs/telemetry.md against the catalogue, both ways, and its examples against a real scrape."""

import re

import httpx
import pytest

from server.telemetry.catalogue import METRICS, Metric
from tests.conftest import ROOT
from tests.server.serving import chat, complete, only_ascii
from tests.server.telemetry.scrape import scraped

ROW = re.compile(r"^\| `([a-z_.]+)` \| (counter|gauge|histogram), (\S+) \| (.*?) ?\| (.+?) \| `(.+)` \|$", re.MULTILINE)
TEXT = (ROOT / "docs" / "telemetry.md").read_text("utf-8")
ROWS = {found[0]: found for found in ROW.findall(TEXT)}
NAME = re.compile(r"\b(?:slipstream|gen_ai)_[a-z_]+")


def test_the_page_has_every_metric_and_no_other() -> None:
    assert set(ROWS) == {metric.name for metric in METRICS}
    assert len(ROW.findall(TEXT)) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_row_says_what_the_instrument_is(metric: Metric) -> None:
    _, kind, unit, labels, _, example = ROWS[metric.name]
    assert (kind, unit) == (metric.kind, metric.unit)
    assert tuple(re.findall(r"`([^`]+)`", labels)) == metric.labels
    assert any(name.startswith(metric.prometheus) for name in NAME.findall(example)), example
    assert example.count("(") == example.count(")")


async def test_examples_ask_for_samples_that_there_are(client: httpx.AsyncClient) -> None:
    for verifier in ("off", "strict", {"type": "lossy", "threshold": 0.1}):
        await chat(client, verifier=verifier, max_tokens=30, logit_bias=only_ascii())
    await complete(client)
    samples = {one.name for family in (await scraped(client)).values() for one in family.samples}
    asked = {name for row in ROWS.values() for name in NAME.findall(row[5])}
    asked = {name for name in asked if not name.startswith("slipstream_audit")}  # tests/server/audit has the audit on
    assert asked <= samples
