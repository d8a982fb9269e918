"""The command line: `slipstream serve`, `fetch`, `config check`, `calibrate`, `memory`, `evaluate`, `tune`, `bench`.

Exit codes: 2 if the configuration or the arguments are wrong, 1 if anything else stands in the way. Heavy imports
wait until a command needs them, so `--help` is quick.
"""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from server.cli_calibrate import calibrate
from server.cli_memory import memory_app
from server.console import ConfigOption, complain, fail, settings_of
from server.logs import log_to_stderr

app = typer.Typer(name="slipstream", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
config_app = typer.Typer(no_args_is_help=True, help="Look at configuration files.")
app.add_typer(config_app, name="config")
app.add_typer(memory_app, name="memory")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"slipstream {version('slipstream')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """An OpenAI-compatible LLM server with loosely speculative decoding, chosen per request."""


@app.command()
def serve(
    config: ConfigOption,
    host: Annotated[str | None, typer.Option(help="Address to listen on; overrides server.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; overrides server.port.")] = None,
) -> None:
    """Fetch what is missing, load the models and serve until SIGTERM or Ctrl-C."""
    given = {"host": host, "port": port}
    settings = settings_of(config, {"server": {key: value for key, value in given.items() if value is not None}})
    log_to_stderr(settings.log_level, settings.log_format)
    for warning in settings.warnings():
        logging.getLogger(__name__).warning(warning)
    from server.serve import ServeError, run

    try:
        run(settings)
    except ServeError as error:
        if settings.log_format == "json":  # whoever reads the log reads no other lines
            logging.getLogger(__name__).critical("%s", error)
            raise typer.Exit(1) from None
        fail(str(error))


@app.command()
def fetch(config: ConfigOption) -> None:
    """Download, verify and convert the models' weights, so that serving starts at once."""
    settings = settings_of(config)
    log_to_stderr(settings.log_level, settings.log_format)
    from server.model_folders import fetch as fetch_models
    from server.weights import WeightsError

    try:
        folders = fetch_models(settings)
    except WeightsError as error:
        fail(str(error))
    for label, folder in (("target", folders.target), ("draft", folders.draft)):
        if folder is not None:
            typer.echo(f"{label}: {folder}")


@config_app.command("check")
def config_check(files: Annotated[list[Path], typer.Argument(help="YAML files.", metavar="FILE...")]) -> None:
    """Check configuration files and say what they need and what is missing here. Exit code 2 if one is wrong."""
    from core.models.errors import InvalidModelFile, UnsupportedModel
    from server.config_report import report
    from server.expectations import ExpectationError
    from server.settings_loading import ConfigError, load_settings

    wrong = False
    for file in files:
        try:
            lines = report(load_settings(file))
        except ConfigError as error:
            wrong = True
            complain(str(error))
            continue
        except (ExpectationError, InvalidModelFile, UnsupportedModel) as error:
            wrong = True
            complain(f"{file}: {error}")
            continue
        typer.echo(f"{file}: valid")
        for line in lines:
            typer.echo(f"  {line}")
    if wrong:
        raise typer.Exit(2)


app.command()(calibrate)


_HANDED_OVER = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(add_help_option=False, context_settings=_HANDED_OVER)
def evaluate(context: typer.Context) -> None:
    """What verifiers gain and what they cost in accuracy, on scored tasks; --help lists the options."""
    _evaluation("evaluate", context)


@app.command(add_help_option=False, context_settings=_HANDED_OVER)
def tune(context: typer.Context) -> None:
    """The settings that gain most on your prompts while enough of the quality stays; --help lists the options."""
    _evaluation("tune", context)


def _evaluation(command: str, context: typer.Context) -> None:
    from server.bench import BenchMissingError, run_evaluation

    try:
        run_evaluation([command, *context.args])
    except BenchMissingError as error:
        fail(str(error))


@app.command(add_help_option=False, context_settings=_HANDED_OVER)
def bench(context: typer.Context) -> None:
    """Measure speed; `slipstream bench --help` lists what."""
    from server.bench import BenchMissingError, run_bench

    try:
        run_bench(context.args)
    except BenchMissingError as error:
        fail(str(error))


def main() -> None:
    """The console script."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
