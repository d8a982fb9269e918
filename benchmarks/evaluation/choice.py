"""Which settings are compared, from what the command line says."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.errors import BenchError
from benchmarks.evaluation.presets import PRESETS
from benchmarks.matrix import OFF, Setting, settings_matrix

DEFAULT_VERIFIERS = ("strict", "fly", "csd", "hybrid")


@dataclass(frozen=True, slots=True)
class Choice:
    """settings: the baseline first. temperature, seeds: what the presets ask for."""

    settings: list[Setting]
    temperature: float = 0.0
    seeds: tuple[int, ...] = (0,)


def choose(
    presets: Sequence[str], verifiers: Sequence[str], drafters: Sequence[str], lengths: Sequence[str],
    own: Sequence[str], ours: bool,
) -> Choice:  # fmt: skip
    """own: settings as NAME={fields}. ours: whether verifiers are known to whoever is asked without having been named;
    a foreign server gets no fields that nobody asked for. BenchError for what makes no sense."""
    if unknown := [name for name in presets if name not in PRESETS]:
        raise BenchError(f"unknown preset {unknown[0]!r}; there are {', '.join(PRESETS)}")
    chosen = [PRESETS[name] for name in presets]
    if not (chosen or verifiers or own) and ours:
        verifiers = DEFAULT_VERIFIERS
    settings = [setting for preset in chosen for setting in preset.settings]
    settings += settings_matrix(verifiers, drafters, lengths) if verifiers else []
    baseline = [OFF] if chosen or verifiers or ours else []
    named = {setting.name: setting for setting in [*baseline, *settings, *map(_own, own)]}
    sampled = [preset for preset in chosen if preset.temperature > 0]
    return Choice(
        list(named.values()) or [Setting("default", {})],
        max((preset.temperature for preset in sampled), default=0.0),
        tuple(dict.fromkeys(seed for preset in sampled for seed in preset.seeds)) or (0,),
    )


def _own(text: str) -> Setting:
    name, _, fields = text.partition("=")
    try:
        found = json.loads(fields)
    except ValueError:
        found = None
    if not name or not isinstance(found, dict):
        raise BenchError(f"setting {text!r}: should be NAME={{...}} with a request's fields as JSON")
    return Setting(name, found)
