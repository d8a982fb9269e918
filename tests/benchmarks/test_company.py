"""The pauses of an `off` answer in company, with a tiny random pair."""

import asyncio
from itertools import accumulate
from pathlib import Path

import pytest

from benchmarks import company
from benchmarks.answers import Answer
from benchmarks.company import neighbours
from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError
from benchmarks.matrix import settings_matrix
from benchmarks.stack import open_stack
from tests.benchmarks.conftest import changed

STRICT, FLY = settings_matrix(["strict", '{"type": "fly", "window": 2}'], ["auto"], ["6"])


async def test_company_decodes_until_the_watched_answer_ends(
    config: Path, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(company, "_NEIGHBOURS_TOKENS", 60)  # drafting, they are finished again and again
    async with open_stack(config) as stack:
        found = await neighbours(stack, prompts[:3], [STRICT, FLY], company=2, max_tokens=40)
        assert found.keys() == {"company", STRICT.name, FLY.name}
        for setting in (STRICT, FLY):
            beside = found[setting.name]
            assert {len(values) for values in beside["each"].values()} == {3}
            assert beside["neighbours_decoding"] > 1.5
        assert found[FLY.name]["drafts_a_round"] > 0  # strict company may draft nothing beside an off answer
        assert stack.engine.stats().running == 0
        with pytest.raises(BenchError, match="need 4 prompts"):
            await neighbours(stack, prompts[:3], [STRICT], company=3, max_tokens=6)


async def test_company_that_cannot_run_beside_it_is_no_measurement(config: Path, prompts: list[Prompt]) -> None:
    changed(config, max_running=2)
    async with open_stack(config) as stack:
        with pytest.raises(BenchError, match=r"of 3 .* neighbours ran beside"):
            await asyncio.wait_for(neighbours(stack, prompts, [STRICT], company=3, max_tokens=6), 60)


def test_pauses_are_told_in_the_mean_the_median_and_the_tail() -> None:
    arrivals = tuple(accumulate([0.0, *[1.0] * 18, 3.0, 11.0]))
    watched = company.Watched(Answer(21, "", 0.0, arrivals), 1, 1.0, 0.0)
    assert watched.pauses() == {"mean": 1.6, "median": 1.0, "p95": 11.0}
