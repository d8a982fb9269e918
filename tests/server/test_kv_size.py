"""A GPU's memory is stood in for by two numbers; the sums and the loaded models are real."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from core.models.loader import LoadedModel
from server.assembly_error import AssemblyError
from server.device_memory import DeviceMemory
from server.heaviest import HeaviestRounds
from server.kv_size import kv_tokens, measured_scratch
from server.settings import Settings
from tests.tiny import loaded, random_model

MB = 10**6
PER_TOKEN = 256  # 2 (keys and values) x 2 layers x 2 heads x 16 dimensions in half precision


def settings(**sections: Any) -> Settings:
    return Settings.model_validate({"models": {"target": {"source": "./t"}}, **sections})


def on(device: str) -> LoadedModel:
    return replace(loaded(random_model(1)), device=torch.device(device), dtype=torch.bfloat16)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda:0 with 10 of 20 MB free, cuda:1 with 4 of 10."""
    memory = {0: (10 * MB, 20 * MB), 1: (4 * MB, 10 * MB)}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: memory[torch.device(device).index])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


@pytest.mark.usefixtures("gpus")
def test_what_fits_into_the_share_beside_what_is_used_becomes_kv() -> None:
    tokens = kv_tokens(settings(), [on("cuda:0")], 16)
    assert tokens == (18 - 10) * MB // (16 * PER_TOKEN) * 16
    half = settings(kv_cache={"tokens": "auto", "gpu_memory_utilization": 0.55})
    assert kv_tokens(half, [on("cuda:0")], 16) == 1 * MB // (16 * PER_TOKEN) * 16


@pytest.mark.usefixtures("gpus")
def test_models_on_one_device_share_its_room_and_the_tightest_device_decides() -> None:
    assert kv_tokens(settings(), [on("cuda:0"), on("cuda:0")], 256) == 8 * MB // (256 * 2 * PER_TOKEN) * 256
    assert kv_tokens(settings(), [on("cuda:0"), on("cuda:1")], 256) == 3 * MB // (256 * PER_TOKEN) * 256
    assert kv_tokens(settings(), [on("cuda:0"), on("cpu")], 256) == 8 * MB // (256 * PER_TOKEN) * 256


@pytest.mark.usefixtures("gpus")
def test_room_for_less_than_one_request_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(AssemblyError) as caught:
        kv_tokens(settings(max_context=50_000), [on("cuda:0")], 256)
    assert str(caught.value).startswith(
        "beside the weights 8.0 MB of cuda:0 are left for KV, enough for 31232 tokens of the 50000 that one request "
        "may take: "
    )
    with pytest.raises(AssemblyError, match=r"beside the weights 0\.0 MB of cuda:0 are left for KV, enough for 0 tok"):
        kv_tokens(settings(kv_cache={"tokens": "auto", "gpu_memory_utilization": 0.4}), [on("cuda:0")], 256)


@pytest.mark.usefixtures("gpus")
def test_what_rounds_need_is_no_room_for_kv() -> None:
    models = [on("cuda:0"), on("cuda:1")]
    taken = {models[0].device: 6 * MB, models[1].device: 0}
    assert kv_tokens(settings(), models, 256, lambda: taken) == 2 * MB // (256 * PER_TOKEN) * 256
    with pytest.raises(AssemblyError, match=r"^beside weights and 6\.0 MB for a round 2\.0 MB of cuda:0 are left"):
        kv_tokens(settings(max_context=10_000), models, 256, lambda: taken)


@pytest.mark.usefixtures("gpus")
def test_a_draft_on_the_cpu_counts_where_the_targets_kv_would_outgrow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.device_memory.cpu_memory", lambda: DeviceMemory(free=3 * MB, total=10 * MB))
    models = [on("cuda:0"), on("cpu")]
    assert kv_tokens(settings(), models, 256) == 1 * MB // (256 * PER_TOKEN) * 256  # 0.8 of it, 7 MB used
    with pytest.raises(AssemblyError, match=r"1\.0 MB of cpu are left for KV"):
        kv_tokens(settings(max_context=10_000), models, 256)


@pytest.mark.usefixtures("gpus")
def test_what_the_settings_say_stands_and_nothing_is_measured() -> None:
    assert kv_tokens(settings(kv_cache={"tokens": 5000}), [on("cuda:0")], 256, pytest.fail) == 5000


def test_rounds_are_run_for_each_model_and_a_cpu_has_nothing_to_divide() -> None:
    models = [on("cpu"), on("cpu")]
    rounds = HeaviestRounds.of(settings(), 512)
    assert measured_scratch(models, ["sdpa", "sdpa"], 16, rounds, [False, False]) == {torch.device("cpu"): 0}


def test_on_a_cpu_memory_is_taken_as_it_fills() -> None:
    assert kv_tokens(settings(), [on("cpu")], 16) == 32768
