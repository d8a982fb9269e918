"""What the code imports is what an installation without test tools brings."""

import ast
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

from tests.conftest import ROOT

PACKAGES = ("core", "scheduler", "server", "benchmarks")
OPTIONAL = {"flash_attn", "matplotlib", "xllamacpp"}  # the extras `gpu`, `bench` and `peers`; each is asked for by name


def imported(package: str) -> set[str]:
    """The top-level names that the package's files import."""
    names: set[str] = set()
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names


def normal(requirement: str) -> str:
    """The project's name alone, in its one spelling."""
    name = re.split(r"[^\w.-]", requirement.strip())[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_with(requirements: list[str]) -> set[str]:
    """Names of the projects that come with these requirements, extras left out."""
    found: set[str] = set()
    waiting = [normal(one) for one in requirements]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            waiting += [normal(one) for one in requires(name) or () if "extra ==" not in one]
        except PackageNotFoundError:  # for another platform
            continue
    return found


def test_everything_imported_comes_with_the_declared_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    there, distributions = installed_with(project["dependencies"]), packages_distributions()
    foreign = set().union(*map(imported, PACKAGES)) - {*PACKAGES, *sys.stdlib_module_names, *OPTIONAL}
    missing = {name for name in foreign if not there & {normal(one) for one in distributions.get(name, [name])}}
    assert not missing
