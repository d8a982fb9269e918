"""`slipstream bench`: hands over to the benchmarks, which stand above this floor and are not in every installation.

They are looked up by name when somebody asks for them, so that nothing here depends on them.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

_MODULE = "benchmarks.cli"


class BenchMissingError(Exception):
    """The benchmarks are not installed."""


def run_bench(arguments: Sequence[str]) -> None:
    """Run the benchmarks' own command line; it exits as typer applications do."""
    if find_spec(_MODULE.partition(".")[0]) is None:
        raise BenchMissingError("the benchmarks are not part of this installation: run it from a checkout")
    import_module(_MODULE).app(list(arguments), prog_name="slipstream bench")
