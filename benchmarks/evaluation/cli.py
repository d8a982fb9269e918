"""`slipstream evaluate`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.explained import Explained

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Tasks = Annotated[
    list[str],
    typer.Option("--task", "-t", help="humaneval, gsm8k:200, spec-bench/writing, math500=FILE-OR-URL:50, ..."),
]


@app.callback()
def _root() -> None:
    """What verifiers gain and what they cost."""


@app.command()
def evaluate(
    config: Annotated[
        Path, typer.Option("--config", "-c", envvar="SLIPSTREAM_CONFIG", help="YAML file, loaded here.")
    ] = Path("configs/demo.yaml"),
    base_url: Annotated[str | None, typer.Option(help="Ask this server instead; any with OpenAI's API.")] = None,
    model: Annotated[str | None, typer.Option(help="Of that server; default: the first it lists.")] = None,
    key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Of that server.")] = "none",
    task: Tasks = ["humaneval", "gsm8k:200"],  # noqa: B006
    preset: Annotated[list[str], typer.Option(help="Ablations, all-verifiers, ...; see docs/evaluation.md.")] = [],  # noqa: B006
    verifier: Annotated[list[str], typer.Option(help="Names, or JSON objects with parameters.")] = [],  # noqa: B006
    drafter: Annotated[list[str], typer.Option(help="auto, model, prompt_lookup, multilevel.")] = ["auto"],  # noqa: B006
    draft_length: Annotated[list[str], typer.Option(help="default, adaptive, adaptive:K or a fixed K.")] = ["15"],  # noqa: B006
    setting: Annotated[list[str], typer.Option(help="NAME={...}: any fields of a request.")] = [],  # noqa: B006
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0, help="Default: greedy.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Each asks everything once, as in 0,1,2.")] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Most tokens an answer may have.")] = 512,
    clients: Annotated[int, typer.Option(min=1, help="Questions at a time.")] = 8,
    minutes: Annotated[float | None, typer.Option(min=0, help="Begin nothing more after so long.")] = None,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the model's programs even where they cannot be isolated.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the result files.")] = Path("bench-results"),
    name: Annotated[str, typer.Option(help="Of the result files; the same name goes on.")] = "evaluation",
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
        run = Evaluation(plan, Results(out, name), task, plots, trust_code)
        try:
            asyncio.run(_over_http(run, base_url, model, key) if base_url else run.in_process(config))
        except KeyboardInterrupt:
            typer.echo(f"interrupted; every finished answer is in {out}, and the same command goes on", err=True)
            raise typer.Exit(130) from None


async def _over_http(run: object, url: str, model: str | None, key: str) -> None:
    from benchmarks.evaluation.evaluation import Evaluation
    from benchmarks.http_door import root_of
    from benchmarks.speed_run import served_model

    assert isinstance(run, Evaluation)
    await run.over_http(url, model or await served_model(root_of(url), key), key)


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
