"""What a finished answer says about itself: usage as OpenAI's, and what speculation gained and loosened."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from core.provenance import Provenance
from scheduler.events import FinishedEvent

# Rules that only their own verifier's answers tell of.
_OTHER_RULES = {"lossy": (Provenance.LENIENT,), "typical": (Provenance.TYPICAL,)}


def usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None, reasoning_tokens: int | None = None
) -> dict[str, Any]:
    """cached_tokens: prompt tokens found in the prefix cache; None while the answer is not finished. reasoning_tokens:
    of the completion; None for a model that does not think aloud."""
    report: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if cached_tokens is not None:
        report["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    if reasoning_tokens is not None:
        report["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return report


def speculation(
    verifier: str, drafter: str, events: Sequence[FinishedEvent], warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """The `speculation` object of an answer, summed over its sequences if it has several (n > 1, several prompts).

    mean_accepted_length: delivered tokens per verification round. estimated_speedup: what `off` would have taken for
    the rounds' tokens over what they took; null for `off` itself, and without rounds. loosened_tokens has the rule of
    `lossy` (`lenient`) or `typical` as well where that is the verifier.
    """
    counters = [event.counters for event in events]
    loosened: Counter[Provenance] = Counter()
    for one in counters:
        loosened.update(one.loosened)
    rounds = sum(one.rounds for one in counters)
    round_seconds = sum(one.round_seconds for one in counters)
    off_seconds = sum(one.off_seconds for one in counters)
    rules = [Provenance.DEFERRED, Provenance.CALIBRATED, *_OTHER_RULES.get(verifier, ())]
    measured = verifier != "off" and round_seconds > 0 and off_seconds > 0
    report: dict[str, Any] = {
        "verifier": verifier,
        "drafter": drafter,
        "rounds": rounds,
        "draft_tokens": sum(one.draft_tokens for one in counters),
        "accepted_tokens": sum(one.accepted_tokens for one in counters),
        "loosened_tokens": {rule.value: loosened[rule] for rule in rules},
        "bonus_tokens": sum(one.bonus_tokens for one in counters),
        "mean_accepted_length": round(sum(one.round_tokens for one in counters) / rounds, 4) if rounds else None,
        "estimated_speedup": round(off_seconds / round_seconds, 4) if measured else None,
    }
    if warnings:
        report["warnings"] = list(warnings)
    return report
