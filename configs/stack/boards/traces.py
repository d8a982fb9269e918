"""The dashboard of traces: single requests, from Jaeger."""

from grafana_foundation_sdk.builders.dashboard import Dashboard, TextBoxVariable
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from configs.stack.boards.panels import board, filled, jaeger_panel

_SHOW = {"title": "Show below", "url": "/d/slipstream-traces?var-trace=${__value.raw}"}


def traces() -> Dashboard:
    """The latest requests, and the spans of the one that is chosen: for those who may not use Grafana's Explore."""
    listed = jaeger_panel(
        "table", "Latest requests", "Choose one by its trace id.", 9, queryType="search", service="slipstream", limit=50
    )
    for name in ("Trace ID", "traceID"):  # what Jaeger's data source calls it, to people and to itself
        listed.override_by_name(name, [DynamicConfigValue(id_val="links", value=[_SHOW])])
    shown = jaeger_panel(
        "traces", "Request $trace", "Waiting, prompt and decoding, with their attributes.", 18, query="$trace"
    )
    chosen = TextBoxVariable("trace").label("Trace id").default_value("")
    empty = board("traces", "traces", "Single requests: waiting, prompt, decoding.").with_variable(chosen)
    return filled(empty, [listed, shown])
