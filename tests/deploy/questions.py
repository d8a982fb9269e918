"""What dashboards, alert rules and docs/telemetry.md ask of Prometheus: each expression, its metrics and labels."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser
import yaml

from tests.conftest import ROOT

STACK = ROOT / "configs" / "stack"
BOARDS = sorted((STACK / "grafana" / "dashboards").glob("*.json"))
SYNTHETIC = {"up"}  # written by Prometheus itself
TARGET_LABELS = {"job", "instance"}  # added by Prometheus to what it scrapes


@dataclass(frozen=True)
class Question:
    """One expression. asker: the dashboard and panel, the alert rule, or the metric whose example it is."""

    asker: str
    expr: str

    def over(self, window: str) -> str:
        """As Grafana sends it: its variables filled in."""
        return self.expr.replace("$__rate_interval", window).replace("$verifier", ".*")


def of_panels() -> Iterator[Question]:
    for file in BOARDS:
        for panel in json.loads(file.read_text("utf-8"))["panels"]:
            for target in panel["targets"]:
                if "expr" in target:
                    yield Question(f"{file.stem}: {panel['title']} {target['refId']}", target["expr"])


def of_alerts() -> Iterator[Question]:
    for group in yaml.safe_load((STACK / "alerts.yml").read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            yield Question(f"alert {rule['alert']}", rule["expr"])


def of_docs() -> Iterator[Question]:
    """The examples in the last column of the tables of metrics."""
    for line in (ROOT / "docs" / "telemetry.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[4].startswith("`"):
            yield Question(f"docs: {cells[0].strip('`')}", cells[4].strip("`").replace("\\|", "|"))


def selected(expr: str) -> list[tuple[str, set[str]]]:
    """Each metric that the expression reads, with the labels that it must have: those matched and those kept."""
    found: list[tuple[str, set[str]]] = []
    _collect(promql_parser.parse(expr), set(), found)
    return found


def _collect(node: promql_parser.Expr, kept: set[str], found: list[tuple[str, set[str]]]) -> None:
    match node:
        case promql_parser.VectorSelector():
            found.append((node.name, kept | {matcher.name for matcher in node.matchers.matchers}))
        case promql_parser.MatrixSelector():
            _collect(node.vector_selector, kept, found)
        case promql_parser.AggregateExpr():
            by = set(node.modifier.labels) if node.modifier else set()
            _collect(node.expr, by, found)
        case promql_parser.BinaryExpr():
            _collect(node.lhs, kept, found)
            _collect(node.rhs, kept, found)
        case promql_parser.Call():
            for argument in node.args:
                _collect(argument, kept, found)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            _collect(node.expr, kept, found)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            pass
        case _:
            raise TypeError(f"{type(node).__name__} in an expression that is new to this walk")
