"""`slipstream bench audit`: every loose answer of a tiny random pair is replayed, and the files say what was found."""

import json
from pathlib import Path

import pytest

from benchmarks.audit import measure_audit
from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError
from benchmarks.matrix import settings_matrix
from benchmarks.results_file import Results
from tests.server.test_assembly import save_pair

WILD = '{"type": "fly", "entropy_threshold": 0, "window": 0}'


@pytest.fixture
def differing(config: Path) -> Path:
    """The configuration with a draft of other random weights, which is mostly wrong."""
    folder = save_pair(config.parent / "other", seed=9)
    text = config.read_text().replace("source: target", f"source: {folder}")
    config.write_text(text)
    return config


async def test_every_loosened_token_far_enough_from_the_cut_is_replayed(
    differing: Path, prompts: list[Prompt], tmp_path: Path
) -> None:
    settings = settings_matrix([WILD, '{"type": "fly", "entropy_threshold": 9, "window": 2}'], ["model"], ["4"])
    results = Results(tmp_path / "out", "audit")
    path = await measure_audit(differing, prompts[:1], ["mine"], settings, 20, 4, 0, results)
    told = json.loads(path.read_text())["verifiers"]
    (name,) = told  # the other one never loosens
    one = told[name]
    assert (one["asked"], one["answers"]) == (1, 1)
    assert 0 < one["audited_tokens"] <= one["loosened_tokens"]
    assert one["logprob"]["gap"] > 0
    table = path.with_suffix(".md").read_text()
    assert "1 of 1" in table
    assert "0 of 1" in table


async def test_what_loosens_nothing_cannot_be_audited(config: Path, prompts: list[Prompt], tmp_path: Path) -> None:
    settings = settings_matrix(["strict"], ["auto"], ["default"])
    with pytest.raises(BenchError, match="strict loosen nothing"):
        await measure_audit(config, prompts, ["mine"], settings, 8, 8, 0, Results(tmp_path / "out", "audit"))
