"""`slipstream bench`, `evaluate` and `tune`: hand over to the benchmarks, which stand above this floor and are not in
every installation.

They are looked up by name when somebody asks for them, so that nothing here depends on them.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

_MODULE = "benchmarks.cli"
_EVALUATION = "benchmarks.evaluation.cli"


class BenchMissingError(Exception):
    """The benchmarks are not installed."""


def run_bench(arguments: Sequence[str]) -> None:
    """Run the benchmarks' own command line; it exits as typer applications do."""
    _run(_MODULE, arguments, "slipstream bench")


def run_evaluation(arguments: Sequence[str]) -> None:
    """The same of the evaluation's commands; arguments: the command's name first."""
    _run(_EVALUATION, arguments, "slipstream")


def _run(module: str, arguments: Sequence[str], name: str) -> None:
    if find_spec(module.partition(".")[0]) is None:
        raise BenchMissingError("the benchmarks are not part of this installation: run it from a checkout")
    import_module(module).app(list(arguments), prog_name=name)
