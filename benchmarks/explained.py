"""Errors as the command line tells them."""

import logging
from typing import NoReturn

import typer


class Explained:
    """What a person can put right becomes one line and exit code 1. program: how the line begins."""

    def __init__(self, program: str = "slipstream bench") -> None:
        self._program = program

    def __enter__(self) -> None:
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and (reason := _reason(error)) is not None:
            _fail(self._program, reason)


def _reason(error: BaseException) -> str | None:
    """The message, if the error is about options, files or servers; None for one that shows a mistake of ours, whose
    traceback is worth more than a line."""
    from benchmarks.errors import BenchError
    from core.models.errors import InvalidModelFile, UnsupportedModel
    from server.assembly_error import AssemblyError
    from server.errors import ApiError
    from server.expectations import ExpectationError
    from server.settings_loading import ConfigError
    from server.weights import WeightsError

    known = (
        BenchError, ApiError, AssemblyError, ConfigError, ExpectationError, InvalidModelFile, UnsupportedModel,
        WeightsError,
    )  # fmt: skip
    return str(error) if isinstance(error, known) else None


def _fail(program: str, message: str) -> NoReturn:
    for line in message.splitlines():
        typer.echo(f"{program}: {line}", err=True)
    raise typer.Exit(1)
