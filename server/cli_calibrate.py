"""`slipstream calibrate`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from server.console import ConfigOption, fail, settings_of
from server.logs import log_to_stderr

Place = Annotated[
    str, typer.Option("--out", "-o", "--store", help="A file, or a database's URL (sqlite:///memory.db).")
]
Namespace = Annotated[str, typer.Option(help="Of the database; a file has none.")]


def calibrate(
    config: ConfigOption,
    prompts: Annotated[list[Path], typer.Option("--prompts", "-p", help="JSONL, JSON or text; may be repeated.")],
    out: Place = "correction-memory.npz",
    namespace: Namespace = "default",
    samples: Annotated[
        int | None, typer.Option(min=1, help="Most prompts to use; drawn evenly from all files.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Of an answer.")] = 256,
    draft_tokens: Annotated[int, typer.Option(min=1, max=64, help="Drafts a round, always so many.")] = 10,
    concurrency: Annotated[int, typer.Option(min=1, help="Prompts at a time.")] = 8,
    drafter: Annotated[
        str, typer.Option(help="Whose drafts are corrected: auto, model, multilevel, token_recycling, datastore, ...")
    ] = "auto",
    minutes: Annotated[float | None, typer.Option(min=0, help="Begin no more prompts after so long.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run, if there is one.")] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add to a memory that is there; no prompt counts twice.")
    ] = False,
) -> None:
    """Learn what the draft gets wrong again and again, for csd and hybrid: greedy strict answers to your prompts, the
    first mismatch of every round counted. Ctrl-C keeps what was counted; --resume goes on."""
    settings = settings_of(config)
    log_to_stderr(settings.log_level, settings.log_format)
    from core.correction_memory import MemoryFileError
    from core.models.errors import InvalidModelFile, UnsupportedModel
    from core.runtime import MAX_NGRAM
    from server.assembly_error import AssemblyError
    from server.calibration.destination import Destination
    from server.calibration.errors import CalibrationError
    from server.calibration.job import Job
    from server.calibration.run import HowToCalibrate
    from server.expectations import ExpectationError
    from server.memory_report.summary import summary
    from server.memory_store.place import MemoryPlace
    from server.weights import WeightsError

    seconds = None if minutes is None else 60 * minutes
    try:
        place = MemoryPlace.of(out, namespace)
        how = HowToCalibrate(draft_tokens, max_tokens, concurrency, MAX_NGRAM, seconds, drafter)
        job = Job(settings, prompts, samples, Destination(place, resume, merge), how)
        outcome, memory = asyncio.run(job.run())
    except (
        CalibrationError, MemoryFileError, AssemblyError, ExpectationError, InvalidModelFile, UnsupportedModel,
        WeightsError, OSError,
    ) as error:  # fmt: skip
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted; what was counted is kept: the same command with --resume goes on")
    for line in outcome.lines():
        typer.echo(line)
    typer.echo(f"{place}:")
    for line in summary(memory):
        typer.echo(f"  {line}")
