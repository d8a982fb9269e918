"""The dashboard of load: who runs, who waits, and what is left."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from configs.stack.boards.panels import Panel, Query, board, filled, lines, number
from configs.stack.boards.promql import DURATION, GENERATED, rate, ratio

RUNNING = "sum(slipstream_requests_running)"
WAITING = "sum(slipstream_requests_waiting)"
REFUSED = "slipstream_requests_refused_total"
PROMPT = "slipstream_prompt_tokens_total"
FOUND = "slipstream_prefix_cache_hit_tokens_total"
BLOCKS = "slipstream_kv_blocks"


def load() -> Dashboard:
    """Sequences and requests, KV blocks and prompts, and what goes wrong under pressure."""
    return filled(board("load", "load", "Who runs, who waits, and what is left."), [*_now(), *_course()])


def _now() -> list[Panel]:
    used = Query(f'sum({BLOCKS}{{state="used"}}) / sum(slipstream_kv_blocks_limit)')
    refused = Query(rate(REFUSED))
    return [
        number("Running", "Sequences that hold KV blocks.", "short", Query(RUNNING)),
        number("Waiting", "Sequences in the waiting room.", "short", Query(WAITING)),
        number("KV cache used", "Blocks that running sequences hold.", "percentunit", used, decimals=0),
        number("Requests", "Ended a second.", "suffix: /s", Query(rate(f"{DURATION}_count"))),
        number("Refused", "A second, with 429: the waiting room was full.", "suffix: /s", refused),
        number("Server", "1: Prometheus can read it.", "none", Query('up{job="slipstream"}')),
    ]


def _course() -> list[Panel]:
    sequences = [Query(RUNNING, "running"), Query(WAITING, "waiting")]
    blocks = Query(f"sum by (state) ({BLOCKS})", "{{state}}")
    tokens = [Query(rate(PROMPT), "prompt"), Query(rate(GENERATED), "delivered")]
    operations = Query(rate(f"{DURATION}_count", by="gen_ai_operation_name"), "{{gen_ai_operation_name}}")
    trouble = [
        Query(rate("slipstream_preemptions_total"), "preempted"),
        Query(rate(REFUSED), "refused"),
        Query(rate("slipstream_rounds_failed_total"), "failed rounds"),
    ]
    return [
        lines("Sequences", "Running and waiting.", "short", *sequences),
        lines("KV blocks", "Used, cached for prompts to come, free.", "short", blocks, stacked=True),
        lines("Tokens", "Prompts of ended answers, and output; a second.", "suffix: tok/s", *tokens),
        lines(
            "Found in the prefix cache", "Share of prompts.", "percentunit", Query(ratio(FOUND, PROMPT), "found"), top=1
        ),
        lines("Requests by operation", "Ended a second.", "suffix: /s", operations, stacked=True),
        lines("Trouble", "A second.", "suffix: /s", *trouble),
    ]
