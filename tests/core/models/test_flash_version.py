import tomllib
from importlib.metadata import PackageNotFoundError

import pytest

from core.models import flash_version
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("installed", "usable"),
    [("2.4.2", False), ("2.7.4.post1", False), ("2.8.0", True), ("2.8.3+cu13torch2.13", True), ("3.0.0b1", False)],
)
def test_only_releases_whose_calls_we_know_count(installed: str, usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_version, "version", lambda name: installed)
    assert flash_version.flash_version() == (installed if usable else None)


def test_another_package_that_fills_the_same_name_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(flash_version, "version", version)
    assert flash_version.flash_version() is None


def test_the_extra_installs_what_counts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["optional-dependencies"]["gpu"] == [f"flash-attn{flash_version.FLASH_VERSIONS}"]
