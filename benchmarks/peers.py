"""Ours against other engines: same prompts as token ids, same weights, same machine, one at a time in turns.

    python -m benchmarks.peers             what `slipstream bench peers` does

All are loaded at once; while one answers, the rest is idle. llama.cpp reads the very GGUF files that ours was converted
from, transformers the converted folders.
"""

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.answers import Door, Group
from benchmarks.datasets import Prompt
from benchmarks.footprint import serving
from benchmarks.http_door import HttpDoor
from benchmarks.interleave import Unit, rotated, units
from benchmarks.matrix import GREEDY, OFF, settings_matrix
from benchmarks.peer_process import Encode, TransformersDoor, llama_door, start_llama, start_transformers
from benchmarks.peer_summary import PEER_HEAD, PeerRun, compare, peer_cells
from benchmarks.progress import progress
from benchmarks.results_file import Results, configuration
from server.assembly import serving_config
from server.model_folders import Folders, fetch
from server.settings import Settings
from server.settings_loading import load_settings
from server.weights import WeightStore

LLAMA_MODES = ("plain", "draft", "ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
TRANSFORMERS_MODES = {"generate": "plain", "assisted": "assisted", "lookup": "lookup"}
PEERS = (*(f"transformers:{mode}" for mode in TRANSFORMERS_MODES), *(f"llama.cpp:{mode}" for mode in LLAMA_MODES))
_Peer = tuple[str, str, dict[str, Any]]  # engine, mode, options
_PRIME_TOKENS = 4
_SLOT_TOKENS = 2048  # context of each of llama.cpp's slots


@dataclass(frozen=True, slots=True)
class Runner:
    """One column of the comparison. fields: of its requests. cached: whether it keeps prompts, so that asking for a
    few tokens first keeps the prefill out of what is measured."""

    name: str
    door: Door
    ours: bool = False
    cached: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)

    async def ask(self, texts: Sequence[str], max_tokens: int) -> Group:
        return await self.door.ask(texts, {**GREEDY, **self.fields}, max_tokens)


@dataclass(frozen=True, slots=True)
class PeersRun:
    """peers: names out of PEERS, with options of llama.cpp's behind (`llama.cpp:draft:n_max=8`); empty for all.
    ValueError for an unknown one. port: for our own server."""

    config: Path
    prompts: Sequence[Prompt]
    verifiers: Sequence[str]
    peers: Sequence[str]
    concurrency: Sequence[int]
    max_tokens: int
    groups: int
    port: int

    async def measure(self, llama_python: str | None, results: Results) -> Path:
        """llama_python: an interpreter that has xllamacpp; this one if None."""
        wanted = [_parsed(name) for name in self.peers or PEERS]
        settings = load_settings(self.config)
        work = units(self.prompts, self.concurrency, self.groups)
        async with self._runners(settings, wanted, llama_python or sys.executable) as (runners, about):
            runs = await self._run(runners, work)
        rows = compare(runs)
        content = {
            "configuration": configuration(settings, self.config),
            "peers": about,
            "max_tokens": self.max_tokens,
            "summary": [row.as_dict() for row in rows],
            "runs": [run.as_dict() for run in runs],
        }
        title = f"{settings.model_name}: ours against other engines"
        return results.write("peers", title, content, PEER_HEAD, [peer_cells(row) for row in rows])

    async def _run(self, runners: Sequence[Runner], work: Sequence[Unit]) -> list[PeerRun]:
        runs: list[PeerRun] = []
        for runner in runners:  # first times are nobody's
            await runner.ask([self.prompts[0].text], _PRIME_TOKENS)
        with progress("peers", len(work) * len(runners)) as report:
            for turn, unit in enumerate(work):
                texts = [prompt.text for prompt in unit.prompts]
                for runner in rotated(runners, turn):
                    if runner.cached:
                        await runner.ask(texts, _PRIME_TOKENS)
                    run = PeerRun.of(unit, runner.name, runner.ours, turn, await runner.ask(texts, self.max_tokens))
                    runs.append(run)
                    report(f"{unit.category}, {unit.concurrency} at once, {run.runner}: {run.rate or 0:.1f} tokens/s")
        return runs

    @asynccontextmanager
    async def _runners(
        self, settings: Settings, wanted: Sequence[_Peer], python: str
    ) -> AsyncIterator[tuple[list[Runner], dict[str, Any]]]:
        folders = fetch(settings)
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(self.config, self.port))
            encode, eos = _tokenizer(folders)
            runners = self._ours(server.url, settings, encode, stack)
            about: dict[str, Any] = {}
            threads = settings.threads or _threads()
            if modes := [mode for engine, mode, _ in wanted if engine == "transformers"]:
                worker = await start_transformers(folders.target, folders.draft, eos, threads)
                stack.push_async_callback(worker.stop)
                about["transformers"] = worker.hello
                runners += [
                    Runner(
                        f"transformers:{mode}", TransformersDoor(worker, TRANSFORMERS_MODES[mode], encode), cached=False
                    )
                    for mode in modes
                ]
            for mode, options in [(mode, options) for engine, mode, options in wanted if engine == "llama.cpp"]:
                order = self._llama_order(settings, mode, options, threads)
                worker = await start_llama(python, order)
                stack.push_async_callback(worker.stop)
                door = llama_door(worker, encode)
                stack.callback(door.close)
                shown = "".join(f":{key}={value}" for key, value in options.items())
                runners.append(Runner(f"llama.cpp:{mode}{shown}", door))
            yield runners, about

    def _ours(self, url: str, settings: Settings, encode: Encode, stack: AsyncExitStack) -> list[Runner]:
        serving = serving_config(settings)
        door = HttpDoor(url, serving.model, next(iter(serving.api_keys), "none"), "completions", encode)
        stack.callback(door.close)
        chosen = settings_matrix(self.verifiers, ["auto"], ["default"])
        if "off" in self.verifiers:
            chosen = [OFF, *chosen]
        return [Runner(f"ours:{one.name}", door, ours=True, fields=one.fields) for one in chosen]

    def _llama_order(self, settings: Settings, mode: str, options: dict[str, Any], threads: int) -> dict[str, Any]:
        store, draft = WeightStore(settings.cache_dir), settings.models.draft
        slots = max(self.concurrency)
        return {
            "model": str(store.original(settings.models.target)),
            "draft": str(store.original(draft)) if draft is not None and mode == "draft" else None,
            "mode": mode,
            "options": options,
            "slots": slots,
            "context": slots * _SLOT_TOKENS,
            "threads": threads,
        }


def _parsed(name: str) -> _Peer:
    """ "llama.cpp:draft:n_max=8" -> ("llama.cpp", "draft", {"n_max": 8})."""
    engine, _, rest = name.partition(":")
    mode, *options = rest.split(":")
    if f"{engine}:{mode}" not in PEERS or (options and engine != "llama.cpp"):
        raise ValueError(f"unknown peer {name!r}; known are {', '.join(PEERS)}")
    pairs = [option.partition("=") for option in options]
    return engine, mode, {key: float(value) if "." in value else int(value) for key, _, value in pairs}


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _tokenizer(folders: Folders) -> tuple[Encode, list[int]]:
    """The target's chat template around one user message, as token ids, and its end tokens."""
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folders.target)

    def encode(message: str) -> list[int]:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
        )
        return list(tokenizer.encode(text, add_special_tokens=False))

    try:
        eos = GenerationConfig.from_pretrained(folders.target).eos_token_id
    except OSError:
        eos = tokenizer.eos_token_id
    return encode, [eos] if isinstance(eos, int) else list(eos or [tokenizer.eos_token_id])


if __name__ == "__main__":
    from benchmarks.cli import app

    app(["peers", *sys.argv[1:]])
