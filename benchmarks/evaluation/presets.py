"""Settings worth comparing together: the papers' ablations.

Blocks are of a fixed length, so that a loose answer is the same on every machine and after every start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.matrix import Setting, settings_matrix

_PAPER_K = "15"
# Beyond the 3 likeliest tokens' largest entropy, ln 3 nats: the gate never opens.
_CLOSED = 10
# So far below any difference of logits that the memory decides alone.
_ANY_RATIO = 1e-30


@dataclass(frozen=True, slots=True)
class Preset:
    """verifiers, drafters, lengths: as settings_matrix takes them. temperature, seeds: of every request, those of
    `off` included."""

    about: str
    verifiers: Sequence[str]
    drafters: Sequence[str] = ("auto",)
    lengths: Sequence[str] = (_PAPER_K,)
    temperature: float = 0.0
    seeds: Sequence[int] = (0,)

    @property
    def settings(self) -> list[Setting]:
        return settings_matrix(self.verifiers, self.drafters, self.lengths)


def _fly(**parameters: object) -> str:
    return _verifier("fly", **parameters)


def _verifier(kind: str, **parameters: object) -> str:
    pairs = ", ".join(f'"{name}": {value}' for name, value in parameters.items())
    return f'{{"type": "{kind}", {pairs}}}'


PRESETS = {
    "all-verifiers": Preset("every verifier as configured", ("strict", "fly", "csd", "hybrid", "lossy", "typical")),
    "fly-window": Preset("FLy's W", [_fly(window=window) for window in (0, 4, 6, 8)]),
    "fly-theta": Preset(
        "FLy's entropy gate: always open, as published, never open (strict)",
        [_fly(entropy_threshold=theta) for theta in (0, 0.3, _CLOSED)],
    ),
    # A window must be shorter than the block, so 6 would refuse K = 5.
    "fly-k": Preset("FLy's K, with a window of 4", [_fly(window=4)], lengths=("5", "10", "15", "25")),
    "block-length": Preset(
        "what K gives strict, fly and hybrid", ("strict", "fly", "hybrid"), lengths=("8", "15", "25")
    ),
    "multilevel": Preset("FLy with and without lookup helping the draft model", ["fly"], ("model", "multilevel")),
    "free-drafters": Preset(
        "drafters that need no draft model, nor any files", ["strict"], ("prompt_lookup", "token_recycling")
    ),
    # The gate alone, with no memory behind it, is what `lossy` does.
    "csd-parts": Preset(
        "CSD whole, its memory alone, its gate alone",
        ["csd", _verifier("csd", ratio=_ANY_RATIO), _verifier("lossy", threshold=0.3)],
    ),
    "csd-ratio": Preset("CSD's tau", [_verifier("csd", ratio=ratio) for ratio in (0.01, 0.1, 0.3)]),
    "csd-frequency": Preset("CSD's lambda", [_verifier("csd", frequency_threshold=least) for least in (1, 3, 6)]),
    "hybrid-variants": Preset(
        "hybrid; its window counting what CSD rescues; CSD rescuing only where the target is undecided",
        [
            "hybrid",
            _verifier("hybrid", agreement='"rescued"'),
            *(_verifier("hybrid", rescue_entropy=least) for least in (0.1, 0.3)),
        ],
    ),
    "temperature": Preset(
        "temperature 1, three seeds", ("strict", "fly", "csd", "hybrid"), temperature=1.0, seeds=(0, 1, 2)
    ),
}
