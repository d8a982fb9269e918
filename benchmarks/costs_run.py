"""The measurements beside the speed matrix, from configuration to files."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.company import neighbours
from benchmarks.datasets import Prompt
from benchmarks.footprint import footprint
from benchmarks.http_cost import http_cost, open_behind_http
from benchmarks.matrix import Setting
from benchmarks.results_file import Results, Table, configuration
from benchmarks.rounds import commit_milliseconds, evidence_shares
from benchmarks.samples import Spread
from benchmarks.scheduling import scheduling_milliseconds
from benchmarks.stack import open_stack
from benchmarks.tables import flat
from benchmarks.telemetry_cost import telemetry_cost
from server.assembly import serving_config
from server.model_folders import fetch
from server.settings import Settings
from server.settings_loading import load_settings

_HEAD = ("what", "value")
_COMMIT_TIMES = 4  # full rounds begin when all eight have had their first token


async def measure_costs(
    config: Path, prompts: list[Prompt], setting: Setting, clients: Sequence[int], max_tokens: int, results: Results
) -> Path:
    async with open_behind_http(config) as (stack, door):
        figures: dict[str, Any] = {}

        def keep(name: str, found: Any) -> None:
            figures[name] = found
            results.keep("costs", "Costs around the forward", {"figures": _plain(figures)})

        keep("scheduling", scheduling_milliseconds())
        keep("masks_and_commit", await commit_milliseconds(stack, prompts, _COMMIT_TIMES * max_tokens))
        keep("evidence_over_forward", await evidence_shares(stack, prompts[:3], max_tokens))
        keep("http_over_engine", await http_cost(stack, door, prompts, setting, clients, max_tokens))
        return _write("costs", "Costs around the forward", figures, stack.settings, config, results)


async def measure_company(
    config: Path, prompts: list[Prompt], drafting: Sequence[Setting], company: int, max_tokens: int, results: Results
) -> Path:
    async with open_stack(config) as stack:
        figures = await neighbours(stack, prompts, drafting, company, max_tokens)
        return _write("company", "An off answer beside drafting company", figures, stack.settings, config, results)


async def measure_footprint(
    config: Path, prompts: list[Prompt], port: int | None, max_tokens: int, results: Results
) -> Path:
    settings = load_settings(config)
    fetch(settings)  # a download is no part of a start
    serving = serving_config(settings)
    key = serving.api_keys[0] if serving.api_keys else "none"
    figures = await footprint(config, port, prompts, max_tokens, serving.model, key)
    return _write("footprint", "Start-up time and memory", figures, settings, config, results)


async def measure_telemetry(
    config: Path,
    prompts: list[Prompt],
    setting: Setting,
    clients: Sequence[int],
    max_tokens: int,
    passes: int,
    results: Results,
) -> Path:
    figures = await telemetry_cost(config, prompts, setting, clients, max_tokens, passes)
    return _write("telemetry", "CPU time that telemetry takes", figures, load_settings(config), config, results)


def _write(
    kind: str, title: str, figures: Mapping[str, Any], settings: Settings, config: Path, results: Results
) -> Path:
    plain = _plain(figures)
    content = {"configuration": configuration(settings, config), "figures": plain}
    return results.write(kind, title, content, [Table(_HEAD, [list(pair) for pair in flat(plain)])])


def _plain(value: Any) -> Any:
    """Ready for JSON."""
    if isinstance(value, Spread):
        return asdict(value)
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value
