"""What telemetry costs, measured with a tiny random pair and a real collector in a process of its own."""

from pathlib import Path

import pytest

from benchmarks.datasets import Prompt
from benchmarks.matrix import one_setting
from benchmarks.telemetry_cost import telemetry_cost


async def test_the_cost_of_telemetry_is_measured_and_everything_arrives(
    config: Path, prompts: list[Prompt], caplog: pytest.LogCaptureFixture
) -> None:
    figures = await telemetry_cost(config, prompts, one_setting("strict"), [1, 2], max_tokens=12, passes=1)
    for clients in ("1 clients", "2 clients"):
        assert figures[clients]["on_over_off"].max > 1
        assert figures[clients]["microseconds_a_token"].max > 0
    assert figures["export_milliseconds"].min > 0
    assert figures["scrape_milliseconds"].min > 0
    assert "cannot be exported" not in caplog.text
