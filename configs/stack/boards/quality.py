"""The dashboard of quality: what was loosened, and what the audit makes of it."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from configs.stack.boards.panels import Panel, Query, bars, board, filled, lines, verifier_choice
from configs.stack.boards.promql import CHOSEN, GENERATED, LOOSENED, REQUESTS, rate, ratio

RECONVERGED = "slipstream_audit_reconverged_tokens_total"
AUDITED_TOKENS = "slipstream_audit_audited_tokens_total"
AUDITED = "slipstream_audit_answers_total"
OWN_SURPRISAL = "slipstream_audit_own_surprisal_total"
DELIVERED_SURPRISAL = "slipstream_audit_delivered_surprisal_total"


def quality() -> Dashboard:
    """How much is loosened, the audit's estimate of what that costs, and how answers end."""
    empty = board("quality", "quality", "What was loosened, and what the audit makes of it.")
    return filled(empty.with_variable(verifier_choice()), [*_loosened(), *_audit(), *_ends()])


def _loosened() -> list[Panel]:
    share = Query(f"{rate(LOOSENED, CHOSEN, 'verifier')} / {rate(GENERATED, CHOSEN, 'verifier')}", "{{verifier}}")
    rules = Query(rate(LOOSENED, CHOSEN, "rule"), "{{rule}}")
    about = "Tokens a second: deferred (fly), calibrated (csd), lenient (lossy), typical."
    return [
        lines("Loosened share", "Delivered tokens that are not the target's own choice.", "percentunit", share),
        lines("Loosened by rule", about, "suffix: tok/s", rules, stacked=True),
    ]


def _audit() -> list[Panel]:
    back = Query(ratio(RECONVERGED, AUDITED_TOKENS, CHOSEN, "verifier"), "{{verifier}}")
    given = f"{rate(DELIVERED_SURPRISAL, CHOSEN, 'verifier')} - {rate(OWN_SURPRISAL, CHOSEN, 'verifier')}"
    gap = Query(f"({given}) / {rate(AUDITED, CHOSEN, 'verifier')}", "{{verifier}}")
    answers = Query(rate(AUDITED, CHOSEN, "verifier"), "{{verifier}}")
    led = "Audited loosened tokens after which the target's own text meets the delivered one again: an estimate."
    given_up = "The target's mean log-probability of its own greedy answer less that of the delivered one; mean."
    demoted = Query("max by (verifier) (slipstream_audit_demoted)", "{{verifier}}")
    return [
        lines("Led back to the target's text", led, "percentunit", back, top=1),
        lines("Log-probability given up, nats a token", given_up, "none", gap),
        lines("Answers audited", "A second; in idle rounds only.", "suffix: /s", answers),
        bars("Demoted to strict", "1: the audit's guard took this verifier out of service.", "none", demoted, top=1),
    ]


def _ends() -> list[Panel]:
    reasons = Query(rate(REQUESTS, CHOSEN, "finish_reason"), "{{finish_reason}}")
    verifiers = Query(rate(REQUESTS, CHOSEN, "verifier"), "{{verifier}}")
    return [
        lines("How answers end", "Choices a second by finish reason.", "suffix: /s", reasons, stacked=True),
        lines("Who asks for what", "Choices a second by verifier.", "suffix: /s", verifiers, stacked=True),
    ]
