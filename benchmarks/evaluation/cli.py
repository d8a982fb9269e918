"""`slipstream evaluate` and `slipstream tune`."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.explained import Explained

if TYPE_CHECKING:
    from benchmarks.evaluation.evaluation import Evaluation, Findings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Tasks = Annotated[
    list[str],
    typer.Option("--task", "-t", help="humaneval, gsm8k:200, spec-bench/writing, math500=FILE-OR-URL:50, ..."),
]

Config = Annotated[Path, typer.Option("--config", "-c", envvar="SLIPSTREAM_CONFIG", help="YAML file, loaded here.")]
Tokens = Annotated[int, typer.Option(min=2, help="Most tokens an answer may have.")]
Clients = Annotated[int, typer.Option(min=1, help="Questions at a time.")]
Minutes = Annotated[float | None, typer.Option(min=0, help="Begin nothing more after so long.")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run the model's programs even where they cannot be isolated.")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the result files.")]
Name = Annotated[str, typer.Option(help="Of the result files; the same name goes on.")]
DEMO, RESULTS = Path("configs/demo.yaml"), Path("bench-results")


@app.callback()
def _root() -> None:
    """What verifiers gain and what they cost."""


@app.command()
def evaluate(
    config: Config = DEMO,
    base_url: Annotated[str | None, typer.Option(help="Ask this server instead; any with OpenAI's API.")] = None,
    model: Annotated[str | None, typer.Option(help="Of that server; default: the first it lists.")] = None,
    key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Of that server.")] = "none",
    task: Tasks = ["humaneval", "gsm8k:200"],  # noqa: B006
    preset: Annotated[list[str], typer.Option(help="Ablations, all-verifiers, ...; see docs/evaluation.md.")] = [],  # noqa: B006
    verifier: Annotated[list[str], typer.Option(help="Names, or JSON objects with parameters.")] = [],  # noqa: B006
    drafter: Annotated[list[str], typer.Option(help="auto, or any of docs/drafters.md.")] = ["auto"],  # noqa: B006
    draft_length: Annotated[list[str], typer.Option(help="default, adaptive, adaptive:K or a fixed K.")] = ["15"],  # noqa: B006
    setting: Annotated[list[str], typer.Option(help="NAME={...}: any fields of a request.")] = [],  # noqa: B006
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0, help="Default: greedy.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Each asks everything once, as in 0,1,2.")] = None,
    tokens: Tokens = 512,
    clients: Clients = 8,
    minutes: Minutes = None,
    trust_code: TrustCode = False,
    out: Out = RESULTS,
    name: Name = "evaluation",
    plots: Annotated[bool, typer.Option(help="Draw PNG plots as well.")] = True,
) -> None:
    """What verifiers gain and what they cost in accuracy, against off. Ctrl-C keeps every answer there is; the same
    command goes on."""
    from benchmarks.evaluation.choice import choose
    from benchmarks.evaluation.run import Plan
    from benchmarks.evaluation.tasks import load_items

    with Explained("slipstream evaluate"):
        choice = choose(preset, _split(verifier), _split(drafter), _split(draft_length), setting, base_url is None)
        plan = Plan(
            items=load_items(_split(task)),
            settings=choice.settings,
            clients=clients,
            max_tokens=tokens,
            temperature=choice.temperature if temperature is None else temperature,
            seeds=choice.seeds if seeds is None else _numbers(seeds),
            minutes=minutes,
        )
        from benchmarks import plots as drawing  # seconds, once it is known that there is something to do
        from benchmarks.evaluation.evaluation import Evaluation
        from benchmarks.results_file import Results

        if plots:
            drawing.require()  # before the hours that it takes to have something to draw
        run = Evaluation(plan, Results(out, name).opened(), task, plots, trust_code)
        _until_interrupted(_over_http(run, base_url, model, key) if base_url else run.in_process(config), out)


@app.command()
def tune(
    config: Config = DEMO,
    task: Tasks = ["humaneval:40"],  # noqa: B006
    floor: Annotated[
        float, typer.Option(min=0.0, help="Least recovery; agreement with off for tasks unscored.")
    ] = 0.99,
    draft_length: Annotated[list[str], typer.Option(help="default, adaptive, adaptive:K or a fixed K.")] = ["default"],  # noqa: B006
    tokens: Tokens = 512,
    clients: Clients = 8,
    minutes: Minutes = None,
    trust_code: TrustCode = False,
    out: Out = RESULTS,
    name: Name = "tune",
) -> None:
    """Try settings on your prompts, and print those that gain most while recovery stays above a floor."""
    from benchmarks.evaluation.run import Plan
    from benchmarks.evaluation.tasks import load_items
    from server.settings_loading import load_settings

    with Explained("slipstream tune"):
        items = load_items(_split(task))
        from benchmarks.evaluation.evaluation import Evaluation
        from benchmarks.evaluation.tune import advise, as_yaml, candidates
        from benchmarks.results_file import Results

        settings = candidates(load_settings(config), _split(draft_length))
        plan = Plan(items, settings, clients, tokens, minutes=minutes)
        run = Evaluation(plan, Results(out, name).opened(), task, drawn=False, trusted=trust_code)
        advice = advise(_until_interrupted(run.in_process(config), out).rows, settings, floor)
        typer.echo(f"\n{advice.setting.name}: {advice.speedup:.2f}x off, {advice.quality:.1%} of its quality")
        typer.echo(as_yaml(advice.setting), nl=False)


def _until_interrupted(work: Coroutine[Any, Any, "Findings"], out: Path) -> "Findings":
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; every finished answer is in {out}, and the same command goes on", err=True)
        raise typer.Exit(130) from None


async def _over_http(run: "Evaluation", url: str, model: str | None, key: str) -> "Findings":
    from benchmarks.http_door import root_of
    from benchmarks.speed_run import served_model

    return await run.over_http(url, model or await served_model(root_of(url), key), key)


def _split(values: list[str]) -> list[str]:
    """["strict,fly"] is ["strict", "fly"]; JSON objects and URLs stay whole."""
    whole = ("{", "http", "=http")
    return [
        part
        for value in values
        for part in ([value] if any(mark in value for mark in whole) else value.split(","))
        if part
    ]


def _numbers(text: str) -> tuple[int, ...]:
    from benchmarks.errors import BenchError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise BenchError(f"--seeds should be whole numbers from 0 up, as in 0,1,2; got {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


if __name__ == "__main__":
    app()
