"""The dashboard of speculation: what drafters propose and verifiers let through."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from configs.stack.boards.panels import Panel, Query, board, by_number, filled, lines, spread, verifier_choice
from configs.stack.boards.promql import (
    ACCEPTED,
    BONUS,
    CHOSEN,
    DRAFTED,
    GENERATED,
    LENGTH,
    ROUNDS,
    mean,
    or_zero,
    rate,
    ratio,
)

POSITION_DELIVERED = "slipstream_speculation_position_delivered_total"
POSITION_DRAFTED = "slipstream_speculation_position_drafted_total"
SPEEDUP = "slipstream_speculation_estimated_speedup"
HITS = "slipstream_correction_memory_hits_total"
LOOKUPS = "slipstream_correction_memory_lookups_total"


def speculation() -> Dashboard:
    """Acceptance as a whole, then drafter by drafter and position by position, then CSD's memory."""
    empty = board("speculation", "speculation", "What drafters propose and verifiers let through.")
    return filled(empty.with_variable(verifier_choice()), [*_acceptance(), *_drafts(), *_memory()])


def _acceptance() -> list[Panel]:
    length = Query(mean(LENGTH, CHOSEN, "verifier"), "{{verifier}}")
    own = f"{rate(GENERATED, CHOSEN)} - {or_zero(rate(ACCEPTED, CHOSEN))} - {or_zero(rate(BONUS, CHOSEN))}"
    sources = [Query(rate(ACCEPTED, CHOSEN), "drafts"), Query(rate(BONUS, CHOSEN), "bonus"), Query(own, "the target's")]
    about = "Tokens a second: drafts, bonus tokens behind whole blocks, and the target's own."
    return [
        lines("Acceptance length", "Tokens a verification round, correction and bonus included.", "none", length),
        spread(
            "Acceptance lengths of answers",
            "How many ended with which.",
            "none",
            rate(f"{LENGTH}_bucket", CHOSEN, "le"),
        ),
        lines("Where tokens come from", about, "suffix: tok/s", *sources, stacked=True),
        spread("Speedups of answers", "Estimated against off.", "suffix:x", rate(f"{SPEEDUP}_bucket", CHOSEN, "le")),
    ]


def _drafts() -> list[Panel]:
    kept = Query(ratio(ACCEPTED, DRAFTED, CHOSEN, "drafter"), "{{drafter}}")
    positions = ratio(POSITION_DELIVERED, POSITION_DRAFTED, by="position")
    falling = "From a block's first draft on; where little is left, longer blocks do not pay."
    length = Query(ratio(DRAFTED, ROUNDS, CHOSEN, "drafter"), "{{drafter}}")
    bonus = Query(ratio(BONUS, ROUNDS, CHOSEN, "verifier"), "{{verifier}}")
    return [
        lines("Drafts delivered", "Of those proposed, by drafter.", "percentunit", kept, top=1),
        by_number("Drafts delivered by position", falling, "percentunit", positions, "position"),
        lines("Draft tokens a round", "By drafter; adaptive lengths follow what pays.", "none", length),
        lines("Rounds with a bonus token", "Their whole block was delivered.", "percentunit", bonus, top=1),
    ]


def _memory() -> list[Panel]:
    hits = Query(ratio(HITS, LOOKUPS), "hits")
    pairs = Query("sum by (proposer) (slipstream_correction_memory_pairs)", "{{proposer}}")
    known = "Of the mismatches that csd and hybrid answers met, the share that it holds often enough."
    return [
        lines("Correction memory: hits", known, "percentunit", hits, top=1),
        lines("Correction memory: pairs", "What it holds, by who proposed the token.", "short", pairs),
    ]
