"""What the commands share: the configuration they are given, and how they say what is wrong."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from server.settings import Settings

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", envvar="SLIPSTREAM_CONFIG", help="YAML file, such as configs/demo.yaml.")
]


def settings_of(file: Path, flags: dict[str, Any] | None = None) -> "Settings":
    """Settings from a file, the environment and flags; exit code 2 if they are wrong."""
    from server.settings_loading import ConfigError, load_settings

    try:
        return load_settings(file, flags)
    except ConfigError as error:
        complain(str(error))
        raise typer.Exit(2) from None


def complain(message: str) -> None:
    """On stderr, line by line."""
    for line in message.splitlines():
        typer.echo(f"slipstream: {line}", err=True)


def fail(message: str) -> NoReturn:
    """Say what stands in the way and end with exit code 1."""
    complain(message)
    raise typer.Exit(1)
