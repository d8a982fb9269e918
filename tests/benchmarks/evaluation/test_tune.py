import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from benchmarks.evaluation.cli import app
from benchmarks.evaluation.summary import Row
from benchmarks.evaluation.tune import advise, as_yaml, candidates
from benchmarks.matrix import OFF, settings_matrix
from server.settings_loading import load_settings

STRICT, FLY = settings_matrix(["strict", '{"type": "fly", "window": 4}'], ["auto"], ["12"])
ROW = Row(
    group="all", setting=STRICT.name, items=10, answers=10, score=0.5, recovery=1.0, interval=(1.0, 1.0),
    estimated_speedup=1.5, measured_speedup=None, tau=3.0, acceptance=0.5, loosened={}, tokens=100, length=1.0,
    equal=1.0, agreement=1.0, cut=0.0,
)  # fmt: skip


def test_the_fastest_above_the_floor_is_advised() -> None:
    rows = [ROW, replace(ROW, setting=FLY.name, recovery=0.97, estimated_speedup=2.0)]
    assert advise(rows, [OFF, STRICT, FLY], 0.99).setting == STRICT
    assert advise(rows, [OFF, STRICT, FLY], 0.95).setting == FLY
    slow = [replace(row, estimated_speedup=0.8) for row in rows]
    assert advise(slow, [OFF, STRICT, FLY], 0.9).setting == OFF


def test_measured_times_outweigh_estimates_and_agreement_stands_in_for_a_score() -> None:
    fly = replace(ROW, setting=FLY.name, estimated_speedup=2.0, measured_speedup=1.2)
    assert advise([ROW, fly], [OFF, STRICT, FLY], 0.99).setting == STRICT
    unscored = [
        replace(row, score=None, recovery=None) for row in (ROW, replace(fly, agreement=0.6, measured_speedup=None))
    ]
    assert advise(unscored, [OFF, STRICT, FLY], 0.99).setting == STRICT
    assert advise(unscored, [OFF, STRICT, FLY], 0.5).setting == FLY


@pytest.mark.parametrize("memory", [False, True])
def test_candidates_are_what_a_configuration_can_do(config: Path, memory: bool) -> None:
    settings = yaml.safe_load(config.read_text()) | {
        "speculation": {"num_draft_tokens": 8} | ({"correction_memory": "memory.npz"} if memory else {})
    }
    config.write_text(yaml.safe_dump(settings))
    found = candidates(load_settings(config), ["default"])
    assert found[:2] == [OFF, settings_matrix(["strict"], ["auto"], ["default"])[0]]
    assert {one.verifier for one in found} == {"off", "strict", "fly"} | ({"csd", "hybrid"} if memory else set())
    assert all(one.fields["verifier"]["window"] < 8 for one in found if one.verifier == "fly")


@pytest.mark.parametrize("setting", [STRICT, FLY, *settings_matrix(["hybrid"], ["prompt_lookup"], ["adaptive:9"]), OFF])
def test_what_is_printed_can_be_pasted(setting, config: Path) -> None:  # type: ignore[no-untyped-def]
    pasted = yaml.safe_load(config.read_text()) | yaml.safe_load(as_yaml(setting))
    config.write_text(yaml.safe_dump(pasted))
    speculation = load_settings(config).speculation
    assert speculation.verifier == setting.verifier
    if setting is FLY:
        assert (speculation.verifiers.fly.window, speculation.num_draft_tokens) == (4, 12)
        assert speculation.draft_length == "fixed"


def test_tune_prints_a_section_that_the_tried_settings_support(config: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"count to {n}"}) + "\n" for n in range(2)))
    options = ["-c", str(config), "-t", f"mt={prompts}", "--clients", "2", "--tokens", "8", "-o", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, ["tune", *options])
    assert shown.exit_code == 0, shown.output
    section = yaml.safe_load(shown.stdout[shown.stdout.rindex("speculation:") :])["speculation"]
    assert section["verifier"] in ("off", "strict", "fly")
    assert "of its quality" in shown.stdout
