"""Ours against other engines: same prompts as token ids, same weights, same machine, one at a time in turns.

    python -m benchmarks.peers             what `slipstream bench peers` does

While one answers, the others idle. Where not all fit into the memory at once, the other engines come in shifts, and
ours answers everything anew in each. llama.cpp reads the very GGUF files that ours was converted from, transformers the
converted folders.
"""

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.answers import Door, Group
from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError
from benchmarks.footprint import serving
from benchmarks.http_door import HttpDoor
from benchmarks.interleave import BalancedOrders, Unit, units
from benchmarks.matrix import GREEDY, OFF, PRIME_DRAFT, PRIME_TOKENS, Setting, settings_matrix
from benchmarks.peer_names import TRANSFORMERS_MODES, Peer, choose
from benchmarks.peer_order import Prepared, llama_order, prepare, trials
from benchmarks.peer_process import TransformersDoor, llama_door, start_llama, start_transformers
from benchmarks.peer_summary import PEER_HEAD, PeerRun, compare, peer_cells
from benchmarks.progress import Report, progress
from benchmarks.results_file import Results, Table, configuration
from server.assembly import serving_config
from server.settings import Settings
from server.settings_loading import load_settings


@dataclass(frozen=True, slots=True)
class Runner:
    """One column of the comparison. primers, fields: of the requests before those that count, and of those."""

    name: str
    door: Door
    ours: bool = False
    primers: Sequence[Mapping[str, Any]] = ({},)
    fields: Mapping[str, Any] = field(default_factory=dict)

    async def prime(self, texts: Sequence[str]) -> None:
        """Keep the prefill out of what is measured, where an engine keeps prompts, and first times everywhere."""
        for primer in self.primers:
            await self.door.ask(texts, {**GREEDY, **primer}, PRIME_TOKENS)

    async def ask(self, texts: Sequence[str], max_tokens: int) -> Group:
        return await self.door.ask(texts, {**GREEDY, **self.fields}, max_tokens)


@dataclass(frozen=True, slots=True)
class PeersRun:
    """peers: names as in peer_names, empty for all that the configuration allows. groups: sets of prompts that every
    number of clients shares, where it is more than 1. at_once: most of llama.cpp's processes loaded at a time. port:
    for our own server; a free one if None."""

    config: Path
    prompts: Sequence[Prompt]
    verifiers: Sequence[str]
    peers: Sequence[str]
    concurrency: Sequence[int]
    max_tokens: int
    groups: int
    passes: int
    at_once: int
    port: int | None

    async def measure(self, llama_python: str | None, results: Results) -> Path:
        """llama_python: an interpreter that has xllamacpp; this one if None. BenchError for what cannot be compared."""
        choose(self.peers, draft=True)  # names are wrong whatever the configuration says
        settings = load_settings(self.config)
        peers, left_out = choose(self.peers, settings.models.draft is not None)
        ours = self._settings()
        work = units(self.prompts, self.concurrency, self.groups)
        prepared = prepare(settings)
        title = f"{settings.model_name}: ours against other engines"
        about: dict[str, Any] = {
            "configuration": configuration(settings, self.config),
            "left_out": [peer.name for peer in left_out],
            "engines": {},
            "max_tokens": self.max_tokens,
            "passes": self.passes,
        }
        runs: list[PeerRun] = []
        shifts = _shifts(peers, self.at_once)
        steps = self.passes * len(work) * (len(peers) + len(ours) * len(shifts))
        async with serving(self.config, self.port) as server:
            with progress("peers", steps) as report:
                for shift in shifts:
                    async with self._runners(
                        server.url, settings, prepared, ours, shift, work, llama_python or sys.executable
                    ) as (runners, told):
                        about["engines"].update(told)
                        async for run in self._answers(runners, work, len(runs), report):
                            runs.append(run)
                            results.keep("peers", title, {**about, **_summary(runs)})
        rows = compare(runs)
        return results.write(
            "peers", title, {**about, **_summary(runs)}, [Table(PEER_HEAD, [peer_cells(row) for row in rows])]
        )

    def _settings(self) -> list[Setting]:
        if not self.verifiers:
            raise BenchError("--verifier should name at least one of ours")
        chosen = settings_matrix(self.verifiers, ["auto"], ["default"])
        return [OFF, *chosen] if "off" in self.verifiers else chosen

    async def _answers(
        self, runners: Sequence[Runner], work: Sequence[Unit], turns: int, report: Report
    ) -> AsyncIterator[PeerRun]:
        """turns: a number that is larger than any turn before."""
        orders = BalancedOrders()
        for turn in range(self.passes * len(work)):
            unit = work[turn % len(work)]
            texts = [prompt.text for prompt in unit.prompts]
            for runner in orders.order(unit, runners):
                await runner.prime(texts)
                group = await runner.ask(texts, self.max_tokens)
                run = PeerRun.of(unit, runner.name, runner.ours, turns + turn, group)
                report(f"{unit.category}, {unit.concurrency} at once, {run.runner}: {run.rate or 0:.1f} tokens/s")
                yield run

    @asynccontextmanager
    async def _runners(
        self,
        url: str,
        settings: Settings,
        prepared: Prepared,
        ours: Sequence[Setting],
        shift: Sequence[Peer],
        work: Sequence[Unit],
        python: str,
    ) -> AsyncIterator[tuple[list[Runner], dict[str, Any]]]:
        """Ours and one shift of theirs, loaded; and what the latter say of themselves."""
        serving = serving_config(settings)
        told: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            door = HttpDoor(url, serving.model, next(iter(serving.api_keys), "none"), "completions", prepared.encode)
            stack.callback(door.close)
            primers = [OFF.fields, *([PRIME_DRAFT.fields] if settings.models.draft is not None else [])]
            runners = [Runner(f"ours:{one.name}", door, True, primers, one.fields) for one in ours]
            if modes := [peer for peer in shift if peer.engine == "transformers"]:
                order = trials(modes, work, prepared.encode)
                worker = await start_transformers(
                    prepared.folders.target, prepared.folders.draft, prepared.eos, prepared.threads, order
                )
                stack.push_async_callback(worker.stop)
                told["transformers"] = worker.hello
                runners += [
                    Runner(peer.name, TransformersDoor(worker, mode, prepared.encode, prepared.decode))
                    for peer, mode in ((peer, TRANSFORMERS_MODES[peer.mode]) for peer in modes)
                ]
            for peer in [one for one in shift if one.engine == "llama.cpp"]:
                prepared.check_memory(peer.name)
                sized = llama_order(settings, prepared, peer, work, self.max_tokens)
                worker = await start_llama(python, sized)
                stack.push_async_callback(worker.stop)
                theirs = llama_door(worker, prepared.encode)
                stack.callback(theirs.close)
                told[peer.name] = {key: sized[key] for key in ("options", "slots", "context", "threads")}
                runners.append(Runner(peer.name, theirs))
            yield runners, told


def _summary(runs: Sequence[PeerRun]) -> dict[str, Any]:
    return {"summary": [row.as_dict() for row in compare(runs)], "runs": [run.as_dict() for run in runs]}


def _shifts(peers: Sequence[Peer], at_once: int) -> list[list[Peer]]:
    """transformers, whose one process has all its modes and perhaps two copies of the weights, by itself; llama.cpp's,
    one process each, so many at once."""
    theirs = [peer for peer in peers if peer.engine == "transformers"]
    llama = [peer for peer in peers if peer.engine == "llama.cpp"]
    return [*([theirs] if theirs else []), *(llama[i : i + at_once] for i in range(0, len(llama), at_once))]


if __name__ == "__main__":
    from benchmarks.cli import app

    app(["peers", *sys.argv[1:]])
