"""`slipstream memory`: look at correction memories, copy, trim and join them.

A memory is named by a file or by a database's URL (server/memory_store/place.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from server.console import fail, settings_of

memory_app = typer.Typer(no_args_is_help=True, help="Look at correction memories, copy, trim and join them.")

Place = Annotated[str, typer.Argument(help="A file, or a database's URL.", metavar="MEMORY")]
Namespace = Annotated[str, typer.Option(help="Of a database; a file has none.")]


@contextmanager
def _explained() -> Iterator[None]:
    from core.correction_memory import MemoryFileError
    from server.weights import WeightsError

    try:
        yield
    except (MemoryFileError, WeightsError, OSError) as error:
        fail(str(error))


@memory_app.command()
def show(
    memory: Place,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Whose tokenizer tells tokens' text.")] = None,
    namespace: Namespace = "default",
    top: Annotated[int, typer.Option(min=0, help="How many of the most frequent pairs.")] = 20,
    proposer: Annotated[str | None, typer.Option(help="Of model, prompt_lookup, ... alone.")] = None,
) -> None:
    """What it was made of, the most frequent pairs with their kinds, and how few of them cover how much."""
    from server.memory_report.report import report, texts_of
    from server.memory_store.place import MemoryPlace

    with _explained():
        place = MemoryPlace.of(memory, namespace)
        loaded = place.load()
        for line in report(loaded, None if config is None else texts_of(settings_of(config), loaded), top, proposer):
            typer.echo(line)


@memory_app.command("export")
def export_(
    memory: Place,
    out: Annotated[Path, typer.Argument(help="A .jsonl file.", metavar="FILE")],
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Whose tokenizer tells tokens' text.")] = None,
    namespace: Namespace = "default",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write it as text, one JSON object a line."""
    from server.memory_report.report import texts_of
    from server.memory_store.place import MemoryPlace
    from server.memory_store.text import write_text

    with _explained():
        loaded = MemoryPlace.of(memory, namespace).load()
        if out.exists() and not force:
            fail(f"{out} exists; --force replaces it")
        texts = None if config is None else texts_of(settings_of(config), loaded)
        typer.echo(f"{out}: {write_text(out, loaded, texts)} pairs")


@memory_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A .jsonl file that export wrote.", metavar="FILE")],
    memory: Place,
    namespace: Namespace = "default",
    merge: Annotated[bool, typer.Option("--merge", help="Add to a memory that is there.")] = False,
) -> None:
    """Read such text, check all of it, and put it where it is wanted."""
    from server.memory_report.summary import summary
    from server.memory_store.place import MemoryPlace
    from server.memory_store.text import read_text

    with _explained():
        place = MemoryPlace.of(memory, namespace)
        if place.exists() and not merge:
            fail(f"there is a memory in {place}; --merge adds to it")
        place.add(read_text(file))
        typer.echo(f"{place}:")
        for line in summary(place.load()):
            typer.echo(f"  {line}")


@memory_app.command()
def prune(
    memory: Place,
    keep: Annotated[int | None, typer.Option(min=1, help="At most so many pairs a table, the most frequent.")] = None,
    min_count: Annotated[int, typer.Option(min=1, help="No pairs that occur less often.")] = 1,
    namespace: Namespace = "default",
) -> None:
    """Take rare pairs out."""
    from server.memory_store.place import MemoryPlace

    if keep is None and min_count == 1:
        fail("say what is to go: --keep N, --min-count N, or both")
    with _explained():
        place = MemoryPlace.of(memory, namespace)
        typer.echo(f"{place}: {place.prune(keep, min_count)} pairs taken out")


@memory_app.command()
def merge(
    memories: Annotated[list[str], typer.Argument(help="Files or URLs, at least one.", metavar="MEMORY...")],
    out: Annotated[str, typer.Option("--out", "-o", help="Where they are added: a file or a URL.")],
    namespace: Annotated[str, typer.Option(help="Of every database named.")] = "default",
) -> None:
    """Add memories up into --out, which is made if there is none and otherwise added to."""
    from server.memory_report.summary import summary
    from server.memory_store.place import MemoryPlace

    with _explained():
        target = MemoryPlace.of(out, namespace)
        places = [MemoryPlace.of(one, namespace) for one in memories]
        if target in places:
            fail(f"{target} would be added to itself")
        joined = places[0].load()
        for place in places[1:]:
            other = place.load()
            shared = joined.origin.shared(other.origin)
            joined.merge(other)
            if shared:
                typer.echo(f"note: {shared} prompts of {place} are counted in the others already", err=True)
        if target.exists() and (shared := target.load().origin.shared(joined.origin)):
            typer.echo(f"note: {shared} of the prompts are counted in {target} already", err=True)
        target.add(joined)
        typer.echo(f"{target}:")
        for line in summary(target.load()):
            typer.echo(f"  {line}")
