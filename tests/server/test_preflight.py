"""A GPU is stood in for by its memory; nothing is fetched."""

from pathlib import Path
from typing import Any

import pytest

from server.device_memory import DeviceMemory
from server.placement import Machine
from server.preflight import preflight
from server.settings import Settings
from tests.server.test_assembly import save_pair
from tests.server.test_settings import EXPECT

MB = 10**6


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return save_pair(tmp_path / "model")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of cuda:0's 80 MB are free, to be changed by the test."""
    free = [40 * MB]
    monkeypatch.setattr("server.placement.Machine.here", lambda settings: Machine(1, 1, False))
    monkeypatch.setattr("server.device_memory.device_memory", lambda device: DeviceMemory(free[0], 80 * MB))
    return free


def settings(tmp_path: Path, target: dict[str, Any], draft: dict[str, Any] | None = None) -> Settings:
    return Settings.model_validate({"models": {"target": target, "draft": draft}, "cache_dir": tmp_path / "cache"})


def absent(**changes: Any) -> dict[str, Any]:
    """A model to be fetched, 0.13 MB of weights."""
    return {"source": "org/absent", "expect": {**EXPECT, **changes}}


def test_a_model_that_is_here_counts_beside_one_that_is_to_be_fetched(
    tmp_path: Path, here: Path, gpu: list[int]
) -> None:
    both = settings(tmp_path, {"source": str(here)}, absent())
    assert not preflight(both)
    gpu[0] = 200_000  # enough for either, not for both
    assert not preflight(settings(tmp_path, absent()))
    (line,) = preflight(both)
    assert line.startswith("0.2 MB of cuda:0's 80.0 MB are free and the weights alone take ")


def test_models_on_the_cpu_do_not_count(tmp_path: Path, here: Path, gpu: list[int]) -> None:
    gpu[0] = 200_000
    assert not preflight(settings(tmp_path, {"source": str(here), "device": "cpu"}, absent()))


def test_what_is_here_already_is_left_to_loading(tmp_path: Path, here: Path, gpu: list[int]) -> None:
    gpu[0] = 0
    assert not preflight(settings(tmp_path, {"source": str(here)}))


def test_expectations_that_no_config_can_meet_are_a_sentence_not_a_traceback(tmp_path: Path) -> None:
    (line,) = preflight(settings(tmp_path, absent(hidden_size=100, num_attention_heads=3)))
    assert line.startswith("models.target.expect is no LlamaForCausalLM's config: ")


def test_a_file_that_is_no_config_is_too(tmp_path: Path, here: Path) -> None:
    (here / "config.json").write_text("{")
    (line,) = preflight(settings(tmp_path, {"source": str(here)}, absent()))
    assert "is not JSON" in line
