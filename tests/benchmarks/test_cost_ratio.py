import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cost_ratio
from benchmarks.cost_ratio import ROW_PRICES, Prices, accepted_lengths, dearest_draft, model, tables
from benchmarks.draft_length import curve
from benchmarks.errors import BenchError
from core.forward_costs import ForwardCosts

TARGET = curve("1:100,6:120,16:200")
STRICT, FLY = {5: 3.0, 15: 4.0}, {15: 6.0}


def evaluation(**tau: dict[int, float]) -> dict[str, Any]:
    """What evaluate writes of these verifiers, whose other group must not be read."""
    settings: dict[str, Any] = {"off": {"verifier": "off"}}
    summary: list[dict[str, Any]] = []
    for group, factor in (("humaneval", 2.0), ("all", 1.0)):
        summary.append({"group": group, "setting": "off", "tau": None})
        for name, by_k in tau.items():
            for k, value in by_k.items():
                verifier = {"type": name, "window": 4} if name == "fly" else name
                setting = f"{name} K={k}"
                settings[setting] = {"verifier": verifier, "num_draft_tokens": k, "draft_length": "fixed"}
                summary.append({"group": group, "setting": setting, "tau": value * factor})
    return {"settings": settings, "summary": summary}


def test_a_round_costs_its_rows_and_its_draft_steps() -> None:
    assert Prices(TARGET, draft=0.3, rows=1.0).round_cost(5) == pytest.approx(1.2 + 5 * 0.3)
    assert Prices(TARGET, draft=0.3, rows=0.5).round_cost(15) == pytest.approx(1.5 + 15 * 0.3)
    assert Prices(TARGET, draft=0.0, rows=0.0).round_cost(15) == 1.0


def test_each_takes_the_best_of_its_lengths_or_none() -> None:
    assert Prices(TARGET, 0.1, 1.0).best(STRICT) == (pytest.approx(3 / 1.7), 5)
    assert Prices(TARGET, 0.0, 0.0).best(STRICT) == (4.0, 15)
    assert Prices(TARGET, 0.9, 1.0).best(STRICT) == (1.0, 0)


def test_the_bound_is_where_both_are_equally_fast() -> None:
    """6 / (2 + 15 d) = 3 / (1.2 + 5 d) at d = 0.08; behind it strict is the faster one until neither pays."""
    assert dearest_draft(TARGET, 1.0, FLY, STRICT) == pytest.approx(0.08, abs=0.0011)
    assert dearest_draft(TARGET, 1.0, {15: 2.0}, STRICT) is None
    assert dearest_draft(TARGET, 1.0, {5: 9.0}, {5: 1.0}) == 1.0


def test_accepted_lengths_are_those_of_all_tasks() -> None:
    assert accepted_lengths(evaluation(strict=STRICT, fly=FLY)) == {"strict": STRICT, "fly": FLY}
    with pytest.raises(BenchError, match="strict at two fixed lengths"):
        accepted_lengths(evaluation(strict={15: 4.0}, fly=FLY))
    twice = evaluation(strict=STRICT, fly=FLY)
    twice["summary"].append(twice["summary"][-1])
    with pytest.raises(BenchError, match="two settings of fly with K = 15"):
        accepted_lengths(twice)


def test_the_model_says_where_this_machine_stands() -> None:
    found = model(ForwardCosts(TARGET, curve("1:20")), accepted_lengths(evaluation(strict=STRICT, fly=FLY)))
    assert found["here"]["draft_price"] == pytest.approx(0.2)
    assert found["here"]["speed"]["strict"] == pytest.approx(3 / 2.2)
    assert found["here"]["speed"]["fly"] == pytest.approx(6 / 5)
    free = [cell for cell in found["cells"] if cell["draft_price"] == cell["row_price"] == 0]
    assert [cell["speed"] for cell in free] == [{"strict": 4.0, "fly": 6.0}]
    assert list(found["faster_than_strict_up_to"]["fly"]) == [str(rows) for rows in ROW_PRICES]
    speeds, bounds = tables(found)
    assert "here: 0.20" in str(speeds)
    assert "fly" in str(bounds)


def test_it_writes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "evaluation.json"
    source.write_text(json.dumps(evaluation(strict=STRICT, fly=FLY)))
    arguments = ["--target", "1:100,6:120,16:200", "--draft", "1:20", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["cost_ratio", str(source), *arguments])
    cost_ratio.main()
    assert json.loads((tmp_path / "cost-ratio.json").read_text())["tau"]["fly"] == {"15": 6.0}
    assert "a model" in (tmp_path / "cost-ratio.md").read_text()
