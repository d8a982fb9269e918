"""The dashboard of speed: how fast answers come, and what speculation has to do with it."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from configs.stack.boards.panels import Panel, Query, board, filled, lines, number, verifier_choice
from configs.stack.boards.promql import (
    CHOSEN,
    DURATION,
    GENERATED,
    LENGTH,
    LOOSENED,
    OFF_SECONDS,
    ROUND_SECONDS,
    mean,
    or_zero,
    quantile,
    rate,
    ratio,
)

FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds"
PER_TOKEN = "gen_ai_server_time_per_output_token_seconds"
PHASES = "slipstream_round_phase_duration_seconds"


def speed() -> Dashboard:
    """What a user of the server feels, then where a round's time goes."""
    empty = board("speed", "speed", "How fast answers come, and what speculation has to do with it.")
    return filled(empty.with_variable(verifier_choice()), [*_now(), *_answers(), *_rounds()])


def _now() -> list[Panel]:
    output = Query(rate(GENERATED, CHOSEN))
    speedup = Query(ratio(OFF_SECONDS, ROUND_SECONDS, CHOSEN))
    loosened = Query(f"{or_zero(rate(LOOSENED, CHOSEN))} / {rate(GENERATED, CHOSEN)}")
    return [
        number("Output", "Tokens delivered a second, all answers together.", "suffix: tok/s", output, decimals=1),
        number("Speedup", "Estimated against off at the same batch sizes, by measured costs.", "suffix:x", speedup),
        number(
            "Acceptance length", "Tokens a verification round; mean of answers.", "none", Query(mean(LENGTH, CHOSEN))
        ),
        number("First token", "Median time from arrival.", "s", Query(quantile(0.5, FIRST_TOKEN, CHOSEN))),
        number("Each further token", "Median of the answers' means.", "s", Query(quantile(0.5, PER_TOKEN, CHOSEN))),
        number("Loosened", "Share of delivered tokens that are not the target's choice.", "percentunit", loosened),
    ]


def _answers() -> list[Panel]:
    output = Query(rate(GENERATED, CHOSEN, "verifier"), "{{verifier}}")
    speedup = Query(ratio(OFF_SECONDS, ROUND_SECONDS, CHOSEN, "verifier"), "{{verifier}}")
    durations = Query(mean(DURATION, CHOSEN, "verifier"), "{{verifier}}")
    return [
        lines("Output by verifier", "Tokens delivered a second.", "suffix: tok/s", output, stacked=True),
        lines("Speedup by verifier", "Estimated against off; 1 is what off would do.", "suffix:x", speedup),
        lines("Time to first token", "From arrival; waiting and prompt included.", "s", *_percentiles(FIRST_TOKEN)),
        lines("Time per further token", "Mean of each answer, after its first.", "s", *_percentiles(PER_TOKEN)),
        lines("Request duration", "Arrival to last token.", "s", *_percentiles(DURATION)),
        lines("Request duration by verifier", "Mean; longer answers take longer.", "s", durations),
    ]


def _rounds() -> list[Panel]:
    each = Query(mean(PHASES, by="phase"), "{{phase}}")
    about = "Mean: drafting, the target's forward (verify), host work, planning and publishing between (schedule)."
    share = Query(rate(f"{PHASES}_sum", by="phase"), "{{phase}}")
    busy = "Seconds of each phase a second; what is missing to 1 is idle."
    return [
        lines("A round's time by phase", about, "s", each, stacked=True),
        lines("Share of time by phase", busy, "percentunit", share, stacked=True, top=1),
    ]


def _percentiles(histogram: str) -> list[Query]:
    return [Query(quantile(share, histogram, CHOSEN), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)]
