"""The dashboards: fresh, readable, and asking only for what a real server's /metrics has."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from configs.stack.boards.files import BOARDS, FOLDER, written
from tests.deploy import questions
from tests.deploy.traffic import burst, until_audited


def panels(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["panels"]
    return found


def test_there_is_a_file_for_each_dashboard_and_no_other() -> None:
    assert {file.stem for file in questions.BOARDS} == set(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_what_the_code_writes(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text("utf-8") == written(name), "run: python -m configs.stack.boards"


@pytest.mark.parametrize("name", BOARDS)
def test_panels_say_what_they_show_and_lie_side_by_side(name: str) -> None:
    shown = panels(name)
    assert [panel["id"] for panel in shown] == list(range(1, len(shown) + 1))
    assert len({panel["title"] for panel in shown}) == len(shown)
    taken: set[tuple[int, int]] = set()
    for panel in shown:
        assert panel["description"].endswith("."), panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters
        assert len(set(letters)) == len(letters)
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells


@pytest.mark.parametrize("asked", [questions.of_panels, questions.of_alerts, questions.of_docs])
def test_every_expression_can_be_read(asked: Callable[[], Iterator[questions.Question]]) -> None:
    found = list(asked())
    assert len(found) > 5
    assert all(questions.selected(question.over("1m")) for question in found)


def test_legends_name_only_labels_that_the_query_keeps() -> None:
    for name in BOARDS:
        for panel in panels(name):
            for target in panel["targets"]:
                legend = target.get("legendFormat", "")
                if legend.startswith("{{"):
                    kept = set().union(
                        *(labels for _, labels in questions.selected(target["expr"].replace("$__rate_interval", "1m")))
                    )
                    assert legend.strip("{}") in kept, panel["title"]


def test_all_that_is_asked_for_is_in_a_real_scrape(watched: httpx.Client) -> None:
    burst(watched)
    scraped = until_audited(watched)
    there: dict[str, set[str]] = {name: set(questions.TARGET_LABELS) for name in questions.SYNTHETIC}
    for family in text_string_to_metric_families(scraped):
        for sample in family.samples:
            there.setdefault(sample.name, set(questions.TARGET_LABELS)).update(sample.labels)
    for question in [*questions.of_panels(), *questions.of_alerts(), *questions.of_docs()]:
        for metric, labels in questions.selected(question.over("1m")):
            assert metric in there, f"{question.asker}: no {metric} in /metrics"
            assert labels <= there[metric], f"{question.asker}: {metric} has no labels {labels - there[metric]}"
