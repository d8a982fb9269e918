"""Grafana panels and dashboards as this project wants them all, over Grafana's own builders, which know the format.

Needs grafana-foundation-sdk, which comes with `pip install -e '.[dev]'`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import barchart, bargauge, common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="prometheus")
JAEGER = DataSourceRef(type_val="jaeger", uid="jaeger")
TAG = "slipstream"
WIDTH = 24  # of a dashboard, in grid columns

Panel = Builder[Any]


@dataclass(frozen=True)
class Query:
    """One PromQL expression and how its series are called: a template over labels, such as {{verifier}}."""

    expr: str
    legend: str = ""

    def target(self, letter: str = "A") -> prometheus.Dataquery:
        query = prometheus.Dataquery().datasource(PROMETHEUS).ref_id(letter).expr(self.expr)
        return query.legend_format(self.legend or "__auto")


def lines(
    title: str, about: str, unit: str, *queries: Query, span: int = 12, stacked: bool = False, top: float | None = None
) -> timeseries.Panel:
    """Curves over time. top: the axis' end, for shares."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(PROMETHEUS)
        .unit(unit)
        .min(0)
        .span(span)
        .height(8)
        .fill_opacity(40 if stacked else 8)
        .line_width(1 if stacked else 2)
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if top is not None:
        panel.max(top)
    for letter, query in zip("ABCDEF", queries, strict=False):
        panel.with_target(query.target(letter))
    return panel


def number(title: str, about: str, unit: str, query: Query, span: int = 4, decimals: int | None = None) -> stat.Panel:
    """The value now, large, with its course behind it."""
    panel = (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(PROMETHEUS)
        .unit(unit)
        .span(span)
        .height(4)
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query.target())
    )
    return panel if decimals is None else panel.decimals(decimals)


def bars(title: str, about: str, unit: str, query: Query, span: int = 12, top: float | None = None) -> bargauge.Panel:
    """One bar for each series, as of now."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(about)
        .datasource(PROMETHEUS)
        .unit(unit)
        .min(0)
        .span(span)
        .height(8)
        .display_mode(BarGaugeDisplayMode.BASIC)
        .orientation(VizOrientation.HORIZONTAL)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query.target().instant())
    )
    return panel if top is None else panel.max(top)


def spread(title: str, about: str, unit: str, expr: str, span: int = 12) -> heatmap.Panel:
    """How values are spread over a histogram's buckets in time; expr keeps the label `le`."""
    query = Query(expr, "{{le}}").target().format(PromQueryFormat.HEATMAP)
    return (
        heatmap.Panel()
        .title(title)
        .description(about)
        .datasource(PROMETHEUS)
        .span(span)
        .height(8)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .with_target(query)
    )


def by_number(title: str, about: str, unit: str, expr: str, label: str, span: int = 12) -> barchart.Panel:
    """One bar for each value of a label that is a number, in its order, as of now: shares, from 0 to 1."""

    def typed(kind: str) -> DataTransformerConfig:
        conversion = {"targetField": label, "destinationType": kind}
        return DataTransformerConfig(id_val="convertFieldType", options={"fields": {}, "conversions": [conversion]})

    in_order = DataTransformerConfig(id_val="sortBy", options={"fields": {}, "sort": [{"field": label}]})
    return (
        barchart.Panel()
        .title(title)
        .description(about)
        .datasource(PROMETHEUS)
        .unit(unit)
        .min(0)
        .max(1)
        .span(span)
        .height(8)
        .x_field(label)
        .legend(common.VizLegendOptions().show_legend(False))
        .transformations([typed("number"), in_order, typed("string")])
        .with_target(Query(expr).target().instant().format(PromQueryFormat.TABLE))
    )


class _JaegerQuery(variants.Dataquery):
    """What Grafana's Jaeger data source is asked; Grafana's builders know no model of it."""

    def __init__(self, **fields: object) -> None:
        self._fields = {"refId": "A", "datasource": JAEGER, **fields}

    def to_json(self) -> dict[str, object]:
        return self._fields


class _JaegerTarget(Builder[variants.Dataquery]):
    def __init__(self, **fields: object) -> None:
        self._query = _JaegerQuery(**fields)

    def build(self) -> variants.Dataquery:
        return self._query


def jaeger_panel(kind: str, title: str, about: str, height: int, **query: object) -> dashboard.Panel:
    """A panel of type `kind` (table or traces) over the whole width that asks Jaeger."""
    panel = dashboard.Panel().type(kind).title(title).description(about).datasource(JAEGER)
    return panel.span(WIDTH).height(height).with_target(_JaegerTarget(**query))


def board(uid: str, title: str, about: str) -> dashboard.Dashboard:
    """An empty dashboard, linked with the others."""
    return (
        dashboard.Dashboard(f"Slipstream: {title}")
        .uid(f"slipstream-{uid}")
        .description(about)
        .tags([TAG])
        .readonly()
        .timezone("browser")
        .time("now-30m", "now")
        .refresh("10s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Slipstream")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .keep_time(True)
            .include_vars(True)
        )
    )


def verifier_choice() -> dashboard.QueryVariable:
    """The variable $verifier: which verifiers' answers count; all of them at first."""
    everything = VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard.QueryVariable("verifier")
        .label("Verifier")
        .datasource(PROMETHEUS)
        .query("label_values(slipstream_requests_total, verifier)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )


def filled(empty: dashboard.Dashboard, panels: Iterable[Panel]) -> dashboard.Dashboard:
    """The dashboard with its panels, laid out from left to right in rows, and numbered."""
    for number, panel in enumerate(panels, start=1):
        empty.with_panel(panel.id(number))  # type: ignore[attr-defined]
    return empty
