"""What the scheduler does between two rounds: planning one and learning from it, in milliseconds of processor time.

Simulated (workshop.py), so it needs no models: the scheduler's real work over a text in which lookup often finds
something, at costs under which everybody drafts. There is never more to do than that.
"""

import statistics
from typing import Any

from benchmarks.workshop import Workshop
from core.forward_costs import ForwardCosts, RowCurve
from core.verifiers.params import FlyParams, StrictParams, VerifierParams

RUNNING = (8, 16, 64)
COMPANIES: dict[str, tuple[VerifierParams, ...]] = {
    "strict": (StrictParams(),),
    "fly": (FlyParams(),),
    "strict and fly": (StrictParams(), FlyParams()),
}
_CHEAP_ROWS = ForwardCosts(RowCurve({1: 1.0, 64: 1.1, 1024: 3.0}), RowCurve({1: 0.05, 8: 0.05, 64: 0.08}))
_DRAFTS, _ACCEPTANCE, _ANSWER, _WORDS = 12, 0.7, 3000, 12
_WARM, _ROUNDS = 20, 150


def scheduling_milliseconds(rounds: int = _ROUNDS) -> dict[str, Any]:
    """By company and sequences at once: the median round, and the one that only one in ten takes longer than."""
    return {
        company: {str(running): _measure(verifiers, running, rounds) for running in RUNNING}
        for company, verifiers in COMPANIES.items()
    }


def _measure(verifiers: tuple[VerifierParams, ...], running: int, rounds: int) -> dict[str, float]:
    workshop = Workshop(
        _CHEAP_ROWS,
        _ACCEPTANCE,
        running,
        _DRAFTS,
        adaptive=True,
        answer=_ANSWER,
        verifiers=verifiers,
        drafters=("multilevel", "prompt_lookup"),
        words=_WORDS,
    )
    workshop.tokens_per_second(_WARM + rounds)
    milliseconds = sorted(1e3 * one for one in workshop.planning[_WARM:])
    return {
        "median_ms": statistics.median(milliseconds),
        "nine_in_ten_ms": milliseconds[int(0.9 * len(milliseconds))],
        "rounds": len(milliseconds),
    }


if __name__ == "__main__":
    for company, by_running in scheduling_milliseconds().items():
        for running, found in by_running.items():
            print(
                f"{company:16}{running:>4} at once: median {found['median_ms']:.2f} ms a round, "
                f"nine in ten within {found['nine_in_ten_ms']:.2f} ms"
            )
