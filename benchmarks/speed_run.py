"""One speed run from plan to files: in process or over HTTP, measured, summarised, written, drawn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks import plots
from benchmarks.answers import Door
from benchmarks.calibration import calibrate
from benchmarks.datasets import load
from benchmarks.http_door import HttpDoor, RefusedError, root_of
from benchmarks.results_file import Results, configuration
from benchmarks.samples import summarise
from benchmarks.speed import Plan, measure
from benchmarks.stack import Stack, open_stack
from benchmarks.tables import SPEED_HEAD, speed_cells


@dataclass(frozen=True, slots=True)
class SpeedRun:
    """sources: the specifications that the plan's prompts come from. calibration: prompts a specification that CSD's
    memory is filled from, none of them among those measured; 0 leaves the memory as the configuration says."""

    plan: Plan
    results: Results
    sources: list[str]
    calibration: int = 0
    drawn: bool = True

    async def in_process(self, config: Path) -> Path:
        """Load what the config names into this process."""
        async with open_stack(config) as stack:
            calibrated = await self._calibrate(stack) if self.calibration else None
            about = {"configuration": configuration(stack.settings, config), "calibration": calibrated}
            return await self._measured(stack, f"Speed of {stack.config.model} against off", about)

    async def over_http(self, url: str, key: str) -> Path:
        """Ask a running server; answers are compared as text. RefusedError if it cannot be asked."""
        if self.calibration:
            raise ValueError("--calibrate needs --config: a running server reads its own correction memory")
        model = await _served_model(root_of(url), key)
        door = HttpDoor(url, model, key)
        try:
            return await self._measured(door, f"Speed of {model} against off, over HTTP", {"server": "over HTTP"})
        finally:
            door.close()

    async def _measured(self, door: Door, title: str, about: dict[str, Any]) -> Path:
        samples = await measure(door, self.plan)
        rows = summarise(samples)
        content = {
            **about,
            "prompts": self.sources,
            "settings": {setting.name: setting.fields for setting in self.plan.settings},
            "sampling": dict(self.plan.sampling),
            "max_tokens": self.plan.max_tokens,
            "passes": self.plan.passes,
            "summary": [row.as_dict() for row in rows],
            "samples": [sample.as_dict() for sample in samples],
        }
        path = self.results.write("speed", title, content, SPEED_HEAD, [speed_cells(row) for row in rows])
        if self.drawn:
            for plot in plots.draw(rows, self.results.folder, self.results.name):
                print(f"drawn: {plot}", flush=True)
        return path

    async def _calibrate(self, stack: Stack) -> dict[str, int]:
        kinds = [source.rpartition(":")[0] or source for source in self.sources]
        measured = {prompt.text for prompt in self.plan.prompts}
        others = load([f"{kind}:{self.calibration}" for kind in dict.fromkeys(kinds)], besides=measured)
        return await calibrate(stack, [prompt.text for prompt in others], self.plan.max_tokens)


async def _served_model(url: str, key: str) -> str:
    try:
        async with httpx.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {key}"}) as client:
            response = await client.get(f"{url}/v1/models")
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
        raise RefusedError(f"{url}/v1/models gives no model: {error}") from error
