"""`slipstream tune`: a small sweep, and the settings that gain most while enough of the quality stays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from benchmarks.evaluation.summary import Row
from benchmarks.matrix import OFF, Setting, settings_matrix
from server.settings import Settings

# Entropy threshold, window: the published ones first. Small targets are undecided about much that matters.
_FLY = ((0.3, 6), (0.3, 4), (0.3, 8), (0.6, 6), (0.9, 6))
_CSD = ((0.3, 6), (0.1, 6), (0.3, 3))  # ratio, frequency threshold


@dataclass(frozen=True, slots=True)
class Advice:
    """speedup: over off. quality: recovery where items have a score, agreement otherwise."""

    setting: Setting
    speedup: float
    quality: float


def candidates(settings: Settings, lengths: Sequence[str]) -> list[Setting]:
    """What is worth trying under a configuration, `off` first: windows that fit its blocks, and CSD where it has a
    correction memory. lengths: as in settings_matrix."""
    speculation = settings.speculation
    allowed = speculation.allowed_verifiers
    verifiers = ["strict"]
    fly = [f'"entropy_threshold": {theta}, "window": {window}' for theta, window in _FLY]
    verifiers += [f'{{"type": "fly", {one}}}' for one in fly]
    if speculation.correction_memory is not None:
        csd = [f'"ratio": {ratio}, "frequency_threshold": {least}' for ratio, least in _CSD]
        verifiers += [f'{{"type": "csd", {one}}}' for one in csd]
        verifiers += [f'{{"type": "hybrid", {gate}, {csd[0]}}}' for gate in (fly[0], fly[3], fly[4])]
    found = settings_matrix(verifiers, ["auto"], lengths)
    return [OFF, *(one for one in found if one.verifier in allowed and _fits(one, speculation.num_draft_tokens))]


def _fits(setting: Setting, drafts: int) -> bool:
    verifier = setting.fields["verifier"]
    window = verifier.get("window", -1) if isinstance(verifier, dict) else -1
    return bool(window < setting.fields.get("num_draft_tokens", drafts))


def advise(rows: Sequence[Row], settings: Sequence[Setting], floor: float) -> Advice:
    """The fastest whose quality is at least `floor`, of the widest group of items; `off` where none is faster."""
    widest = max(rows, key=lambda row: row.items).group
    named = {setting.name: setting for setting in settings}
    found = [Advice(OFF, 1.0, 1.0)]
    for row in rows:
        speedup = row.measured_speedup or row.estimated_speedup
        quality = row.agreement if row.score is None else row.recovery
        if row.group == widest and speedup is not None and quality is not None and quality >= floor:
            found.append(Advice(named[row.setting], speedup, quality))
    return max(found, key=lambda advice: advice.speedup)


def as_yaml(setting: Setting) -> str:
    """A configuration's `speculation` section that makes this setting what requests get that do not say."""
    verifier = setting.fields["verifier"]
    section: dict[str, Any] = {"verifier": setting.verifier}
    if isinstance(verifier, dict):
        parameters = {name: value for name, value in verifier.items() if name != "type"}
        section["verifiers"] = {setting.verifier: parameters}
    section |= {name: value for name, value in setting.drafting.items() if (name, value) != ("drafter", "auto")}
    return yaml.safe_dump({"speculation": section}, sort_keys=False)
