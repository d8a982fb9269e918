"""`slipstream bench`: speed against `off`, against other engines, and what the rest costs.

Figures are ratios of runs side by side; run them on an otherwise idle machine.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.explained import Explained

app = typer.Typer(
    name="slipstream bench",
    help="Measure speed, as ratios side by side in one run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Config = Annotated[Path, typer.Option("--config", "-c", envvar="SLIPSTREAM_CONFIG", help="YAML file, loaded here.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the result files.")]
Prompts = Annotated[
    list[str],
    typer.Option(
        "--prompts", "-p", help="humaneval, gsm8k, spec-bench, spec-bench/CATEGORY or a .jsonl file; :N for so many."
    ),
]
Tokens = Annotated[int, typer.Option("--tokens", min=2, help="Most tokens an answer may have.")]
Clients = Annotated[list[str], typer.Option("--clients", help="How many at once; several, as in 1,8.")]

DEMO = Path("configs/demo.yaml")
RESULTS = Path("bench-results")


@app.command()
def speed(
    config: Config = DEMO,
    prompts: Prompts = ["humaneval:10", "spec-bench:3", "gsm8k:5"],  # noqa: B006
    verifier: Annotated[list[str], typer.Option(help="Names, or JSON objects with parameters.")] = ["strict", "fly"],  # noqa: B006
    drafter: Annotated[list[str], typer.Option(help="auto, or any of docs/drafters.md.")] = ["auto"],  # noqa: B006
    draft_length: Annotated[list[str], typer.Option(help="default, adaptive, adaptive:K or a fixed K.")] = ["default"],  # noqa: B006
    clients: Clients = ["1"],  # noqa: B006
    tokens: Tokens = 128,
    passes: Annotated[int, typer.Option(min=1, help="How often everything runs.")] = 1,
    groups: Annotated[int, typer.Option(min=1, help="Sets of prompts that all numbers of clients share.")] = 3,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    calibrate: Annotated[int, typer.Option(min=0, help="Fill CSD's memory from so many other prompts a kind.")] = 0,
    base_url: Annotated[str | None, typer.Option(help="Measure this running server instead of --config.")] = None,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY")] = "none",
    out: Out = RESULTS,
    name: Annotated[str, typer.Option(help="Of the result files.")] = "speed",
    plots: Annotated[bool, typer.Option(help="Draw PNG plots as well.")] = True,
) -> None:
    """A matrix of verifiers, drafters, draft lengths and clients against `off`, prompt by prompt in turns."""
    from benchmarks.matrix import settings_matrix
    from benchmarks.speed import Plan
    from benchmarks.speed_run import SpeedRun

    with Explained():
        settings = settings_matrix(_split(verifier), _split(drafter), _split(draft_length))
        plan = Plan(
            prompts=_load(prompts),
            settings=settings,
            concurrency=_numbers(clients),
            max_tokens=tokens,
            passes=passes,
            groups=groups,
            sampling={"temperature": temperature, "seed": 0},
        )
        run = SpeedRun(plan, _results(out, name, plots), prompts, calibrate, drawn=plots)
        _run(run.over_http(base_url, api_key) if base_url else run.in_process(config))


@app.command()
def costs(
    config: Config = DEMO,
    prompts: Prompts = ["humaneval:8"],  # noqa: B006
    verifier: Annotated[str, typer.Option(help="Of the answers that HTTP's share is measured with.")] = "strict",
    clients: Clients = ["1", "8"],  # noqa: B006
    tokens: Tokens = 64,
    out: Out = RESULTS,
    name: Annotated[str, typer.Option(help="Of the result files.")] = "costs",
) -> None:
    """What stands around the forward: evidence, masks and commit; HTTP, SSE and detokenising."""
    from benchmarks.costs_run import measure_costs
    from benchmarks.matrix import one_setting

    with Explained():
        _run(
            measure_costs(config, _load(prompts), one_setting(verifier), _numbers(clients), tokens, _results(out, name))
        )


@app.command()
def company(
    config: Config = DEMO,
    prompts: Prompts = ["humaneval:8"],  # noqa: B006
    verifier: Annotated[list[str], typer.Option(help="Of the drafting company.")] = ["strict", "fly"],  # noqa: B006
    neighbours: Annotated[int, typer.Option(min=1, help="How many decode beside the one that is watched.")] = 7,
    tokens: Tokens = 64,
    out: Out = RESULTS,
    name: Annotated[str, typer.Option(help="Of the result files.")] = "company",
) -> None:
    """The pauses of an `off` answer beside drafting company, against those beside `off` company."""
    from benchmarks.costs_run import measure_company
    from benchmarks.errors import BenchError
    from benchmarks.matrix import settings_matrix

    with Explained():
        drafting = settings_matrix(_split(verifier), ["auto"], ["default"])
        if not drafting:
            raise BenchError("--verifier should name company that drafts; off is what it is compared with")
        _run(measure_company(config, _load(prompts), drafting, neighbours, tokens, _results(out, name)))


@app.command()
def audit(
    config: Config = DEMO,
    prompts: Prompts = ["humaneval:6", "spec-bench/writing:3", "spec-bench/reasoning:3"],  # noqa: B006
    verifier: Annotated[list[str], typer.Option(help="Loose ones: names, or JSON objects with parameters.")] = ["fly"],  # noqa: B006
    draft_length: Annotated[list[str], typer.Option(help="default, adaptive, adaptive:K or a fixed K.")] = ["default"],  # noqa: B006
    tokens: Tokens = 128,
    within: Annotated[int, typer.Option(min=1, help="Tokens in which the target must come back.")] = 32,
    calibrate: Annotated[int, typer.Option(min=0, help="Fill CSD's memory from so many other prompts a kind.")] = 0,
    out: Out = RESULTS,
    name: Annotated[str, typer.Option(help="Of the result files.")] = "audit",
) -> None:
    """How often the target comes back to what loose verifiers deliver: the shadow audit of every answer."""
    from benchmarks.audit import measure_audit
    from benchmarks.matrix import settings_matrix

    with Explained():
        settings = settings_matrix(_split(verifier), ["auto"], _split(draft_length))
        _run(measure_audit(config, _load(prompts), prompts, settings, tokens, within, calibrate, _results(out, name)))


@app.command()
def adversarial(
    config: Config = DEMO,
    items: Annotated[Path | None, typer.Option(help="JSONL of your own; docs/evaluation.md tells its fields.")] = None,
    verifier: Annotated[list[str], typer.Option(help="Names, or JSON objects. Default: all, fly thrice.")] = [],  # noqa: B006
    drafts: Annotated[int, typer.Option(min=1, help="Of each block, the planted one included.")] = 15,
    out: Out = RESULTS,
    name: Annotated[str, typer.Option(help="Of the result files.")] = "adversarial",
) -> None:
    """How many planted wrong tokens each verifier lets through, in front of what the target itself goes on with."""
    from benchmarks.adversarial import VERIFIERS, measure_adversarial
    from benchmarks.planted_items import OURS

    with Explained():
        chosen = _split(verifier) or VERIFIERS
        _run(measure_adversarial(config, items or OURS, chosen, drafts, _results(out, name)))


@app.command()
def footprint(
    config: Config = DEMO,
    prompts: Prompts = ["humaneval:8"],  # noqa: B006
    port: Annotated[int | None, typer.Option(help="For the server that is started; default: a free one.")] = None,
    tokens: Tokens = 64,
    out: Out = RESULTS,
    name: Annotated[str, typer.Option(help="Of the result files.")] = "footprint",
) -> None:
    """Start-up time and peak memory of a server of its own, in its second start."""
    from benchmarks.costs_run import measure_footprint

    with Explained():
        _run(measure_footprint(config, _load(prompts), port, tokens, _results(out, name)))


@app.command()
def telemetry(
    config: Config = DEMO,
    prompts: Prompts = ["humaneval:8"],  # noqa: B006
    verifier: Annotated[str, typer.Option(help="Of the answers.")] = "strict",
    clients: Clients = ["1", "8"],  # noqa: B006
    tokens: Tokens = 64,
    passes: Annotated[int, typer.Option(min=1, help="How often everything runs.")] = 3,
    out: Out = RESULTS,
    name: Annotated[str, typer.Option(help="Of the result files.")] = "telemetry",
) -> None:
    """CPU time a token with spans and metrics sent to a collector, against everything off."""
    from benchmarks.costs_run import measure_telemetry
    from benchmarks.matrix import one_setting

    with Explained():
        setting, numbers = one_setting(verifier), _numbers(clients)
        _run(measure_telemetry(config, _load(prompts), setting, numbers, tokens, passes, _results(out, name)))


@app.command()
def peers(
    config: Config = DEMO,
    prompts: Prompts = [  # noqa: B006
        "humaneval:12",
        "spec-bench/writing:4",
        "spec-bench/summarization:4",
        "gsm8k:4",
    ],
    peer: Annotated[list[str], typer.Option(help="Which; see docs/benchmarks.md. Default: all.")] = [],  # noqa: B006
    verifier: Annotated[list[str], typer.Option(help="Ours: names, or JSON objects.")] = ["off", "strict"],  # noqa: B006
    clients: Clients = ["1", "8"],  # noqa: B006
    tokens: Tokens = 128,
    groups: Annotated[int, typer.Option(min=1, help="Sets of prompts that all numbers of clients share.")] = 3,
    passes: Annotated[int, typer.Option(min=1, help="How often everything runs.")] = 1,
    at_once: Annotated[int, typer.Option(min=1, help="Most of llama.cpp's modes loaded at a time.")] = 6,
    port: Annotated[int | None, typer.Option(help="For our server; default: a free one.")] = None,
    llama_python: Annotated[str | None, typer.Option(help="A Python that has xllamacpp, if not this one.")] = None,
    out: Out = RESULTS,
    name: Annotated[str, typer.Option(help="Of the result files.")] = "peers",
) -> None:
    """Ours against transformers and llama.cpp: same prompts, same weights, same machine, in turns."""
    from benchmarks.peers import PeersRun

    with Explained():
        run = PeersRun(
            config=config,
            prompts=_load(prompts),
            verifiers=_split(verifier),
            peers=_split(peer),
            concurrency=_numbers(clients),
            max_tokens=tokens,
            groups=groups,
            passes=passes,
            at_once=at_once,
            port=port,
        )
        _run(run.measure(llama_python, _results(out, name)))


@app.command()
def smoke(config: Config = DEMO, out: Out = RESULTS) -> None:
    """A small run of everything that compares with `off`, plots included: some minutes on two cores."""
    from benchmarks.datasets import load_what_is_there
    from benchmarks.matrix import settings_matrix
    from benchmarks.speed import Plan
    from benchmarks.speed_run import SpeedRun

    with Explained():
        wanted = ["humaneval:3", "gsm8k:1", "spec-bench/writing:1", "spec-bench/summarization:1"]
        prompts, missing = load_what_is_there(wanted)
        for reason in missing:
            typer.echo(f"left out: {reason}", err=True)
        settings = settings_matrix(["strict", "fly"], ["auto"], ["default"])
        clients = [1, max(1, min(3, len(prompts) // 2))]
        plan = Plan(prompts, settings, concurrency=clients, max_tokens=32, groups=1, sampling={"temperature": 0})
        _run(SpeedRun(plan, _results(out, "smoke", plots=True), wanted).in_process(config))


def _load(specs: Iterable[str]) -> Any:
    from benchmarks.datasets import load

    return load(specs)


def _results(folder: Path, name: str, plots: bool = False) -> Any:
    from benchmarks import plots as drawing
    from benchmarks.results_file import Results

    if plots:
        drawing.require()  # before the hour that it takes to have something to draw
    return Results(folder, name).opened()


def _split(values: Iterable[str]) -> list[str]:
    """["strict,fly"] is ["strict", "fly"]; JSON objects stay whole."""
    return [part for value in values for part in ([value] if value.startswith("{") else value.split(",")) if part]


def _numbers(values: Iterable[str]) -> list[int]:
    from benchmarks.errors import BenchError

    found = _split(values)
    if not found or not all(text.isdecimal() and int(text) for text in found):
        raise BenchError(f"--clients should be positive integers, got {', '.join(found)}")
    return sorted({int(text) for text in found})


def _run(measurement: Coroutine[Any, Any, Any]) -> None:
    asyncio.run(measurement)


if __name__ == "__main__":
    app()
