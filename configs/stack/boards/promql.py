"""PromQL for the dashboards: what is asked of counters and histograms, and the metrics that several ask of.

$__rate_interval is Grafana's: four scrapes or the distance between two points, whichever is longer. Every function
sums over all series but for the labels in `by`.
"""

CHOSEN = 'verifier=~"$verifier"'

GENERATED = "slipstream_generated_tokens_total"
ROUNDS = "slipstream_speculation_rounds_total"
DRAFTED = "slipstream_speculation_draft_tokens_total"
ACCEPTED = "slipstream_speculation_accepted_tokens_total"
BONUS = "slipstream_speculation_bonus_tokens_total"
LOOSENED = "slipstream_speculation_loosened_tokens_total"
LENGTH = "slipstream_speculation_acceptance_length"
OFF_SECONDS = "slipstream_speculation_off_seconds_total"
ROUND_SECONDS = "slipstream_speculation_round_seconds_total"
REQUESTS = "slipstream_requests_total"
DURATION = "gen_ai_server_request_duration_seconds"


def rate(metric: str, labels: str = "", by: str = "") -> str:
    """A counter's growth a second."""
    selector = f"{metric}{{{labels}}}" if labels else metric
    return f"sum{f' by ({by})' if by else ''} (rate({selector}[$__rate_interval]))"


def ratio(above: str, below: str, labels: str = "", by: str = "") -> str:
    """What one counter grew for each step of another."""
    return f"{rate(above, labels, by)} / {rate(below, labels, by)}"


def mean(histogram: str, labels: str = "", by: str = "") -> str:
    """The mean of a histogram's observations."""
    return ratio(f"{histogram}_sum", f"{histogram}_count", labels, by)


def quantile(share: float, histogram: str, labels: str = "", by: str = "") -> str:
    """The value below which `share` of a histogram's observations lie."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', labels, f'le, {by}' if by else 'le')})"


def or_zero(expr: str) -> str:
    """A number even where the counter has not appeared yet."""
    return f"({expr} or vector(0))"
