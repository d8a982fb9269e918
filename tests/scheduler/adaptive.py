"""Floors and requests for tests of adaptive draft lengths."""

from core.drafters.model import DraftReach
from core.forward_costs import ForwardCosts, LiveCosts, RowCurve
from core.sequence import GenerationRequest
from tests.scheduler.floor import Floor, limits, request

DEMO = ForwardCosts(RowCurve({1: 0.1, 4: 0.11, 8: 0.15, 16: 0.22, 32: 0.38}), RowCurve({1: 0.03, 8: 0.04}))


def costs(measured: ForwardCosts = DEMO, now: ForwardCosts | None = None) -> LiveCosts:
    live = LiveCosts()
    live.begin(measured)
    if now is not None:
        live.now = now
    return live


def floor(acceptance: float | None, live: LiveCosts | None = None, **options: int) -> Floor:
    bounds = limits(**{"max_running": 16, "round_tokens": 256, **options})
    return Floor(limits=bounds, reach=DraftReach(1000), costs=live or costs(), acceptance=acceptance)


def strict(name: str, drafts: int = 8, max_tokens: int = 300, drafter: str = "model") -> GenerationRequest:
    return request(name, "strict", drafts, max_tokens=max_tokens, drafter=drafter, adaptive=True)


def loose(name: str, drafts: int = 12, max_tokens: int = 100, **options: object) -> GenerationRequest:
    return request(name, "fly", drafts, max_tokens=max_tokens, drafter="model", adaptive=True, **options)  # type: ignore[arg-type]


def lengths(on: Floor, name: str = "a") -> list[int]:
    return [drafts for _, drafts in on.boundaries[name]]


def seconds_of(drafts: list[int]) -> float:
    """A strict sequence's rounds alone."""
    assert DEMO.draft is not None
    return sum(DEMO.verify(1 + k) + k * DEMO.draft.at(1) for k in drafts)
