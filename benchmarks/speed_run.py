"""One speed run from plan to files: in process or over HTTP, measured, summarised, written, drawn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks import plots
from benchmarks.answers import Door
from benchmarks.calibration import calibrate
from benchmarks.datasets import load
from benchmarks.errors import BenchError
from benchmarks.http_door import HttpDoor, RefusedError, root_of
from benchmarks.matrix import OFF
from benchmarks.results_file import Results, Table, configuration
from benchmarks.samples import Row, Sample, summarise
from benchmarks.scaling import SCALING_HEAD, scaling, scaling_cells
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
            raise BenchError("--calibrate needs --config: a running server reads its own correction memory")
        model = await served_model(root_of(url), key)
        door = HttpDoor(url, model, key)
        try:
            return await self._measured(door, f"Speed of {model} against off, over HTTP", {"server": "over HTTP"})
        finally:
            door.close()

    async def _measured(self, door: Door, title: str, about: dict[str, Any]) -> Path:
        """As it goes the result so far lies beside the file that is written in the end."""
        samples = await measure(
            door, self.plan, lambda found: self.results.keep("speed", title, self._told(found, about)[0])
        )
        content, tables, rows = self._told(samples, about)
        path = self.results.write("speed", title, content, tables)
        if self.drawn:
            for plot in plots.draw(rows, self.results.folder, self.results.name):
                print(f"drawn: {plot}", flush=True)
        return path

    def _told(self, samples: list[Sample], about: dict[str, Any]) -> tuple[dict[str, Any], list[Table], list[Row]]:
        rows, together = summarise(samples), scaling(samples, OFF.name)
        content = {
            **about,
            "prompts": self.sources,
            "settings": {setting.name: setting.fields for setting in self.plan.settings},
            "sampling": dict(self.plan.sampling),
            "max_tokens": self.plan.max_tokens,
            "passes": self.plan.passes,
            "clients": list(self.plan.concurrency),
            "sets_at_most": self.plan.groups,
            "prompts_a_client": self.plan.waves,
            "summary": [row.as_dict() for row in rows],
            "by_clients": [row.as_dict() for row in together],
            "samples": [sample.as_dict() for sample in samples],
        }
        tables = [Table(SPEED_HEAD, [speed_cells(row) for row in rows])]
        if together:
            cells = [scaling_cells(row) for row in together]
            tables.append(Table(SCALING_HEAD, cells, "By clients, on the same prompts"))
        return content, tables, rows

    async def _calibrate(self, stack: Stack) -> dict[str, int]:
        kinds = [source.rpartition(":")[0] or source for source in self.sources]
        measured = {prompt.text for prompt in self.plan.prompts}
        others = load([f"{kind}:{self.calibration}" for kind in dict.fromkeys(kinds)], besides=measured)
        return await calibrate(stack, [prompt.text for prompt in others], self.plan.max_tokens)


async def served_model(url: str, key: str) -> str:
    """The first model that /v1/models lists. RefusedError if there is none."""
    try:
        async with httpx.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {key}"}) as client:
            response = await client.get(f"{url}/v1/models")
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, RecursionError, KeyError, IndexError, TypeError) as error:
        raise RefusedError(f"{url}/v1/models gives no model: {error}") from error
