from typing import Any

import pytest

from server.placement import Machine, Placement, obstacles, place
from server.settings import Settings

CPU_ONLY = Machine(cuda_devices=0, processes=1, has_flash_attn=False)
TWO_GPUS = Machine(cuda_devices=2, processes=1, has_flash_attn=True)


def settings(target: dict[str, Any], draft: dict[str, Any] | None = None) -> Settings:
    models = {"target": {"source": "./t", **target}, "draft": draft if draft is None else {"source": "./d", **draft}}
    return Settings.model_validate({"models": models})


def placed(machine: Machine, target: dict[str, Any], draft: dict[str, Any]) -> list[Placement]:
    return [place(model, machine) for _, model in settings(target, draft).models.items()]


def test_a_machine_without_gpu_gets_packed_weights() -> None:
    target, draft = placed(CPU_ONLY, {}, {})
    assert (target.device, target.weights, target.cuda_index) == ("cpu", "fp16", None)
    assert (draft.device, draft.weights) == ("cpu", "int8")


def test_a_machine_with_gpus_gets_the_first_and_bfloat16() -> None:
    for model in placed(TWO_GPUS, {}, {"device": "cuda"}):
        assert (model.device, model.weights, model.cuda_index) == ("cuda:0", "bfloat16", 0)


def test_each_model_runs_where_it_is_told_to() -> None:
    target, draft = placed(TWO_GPUS, {"device": "cuda:1", "weights": "fp16"}, {"device": "cpu"})
    assert (target.device, target.weights, target.cuda_index, target.device_type) == ("cuda:1", "fp16", 1, "cuda")
    assert (draft.device, draft.weights) == ("cpu", "int8")


@pytest.mark.parametrize(
    ("machine", "target", "message"),
    [
        (CPU_ONLY, {"device": "cuda"}, "models.target.device = cuda: torch sees no CUDA device here"),
        (Machine(1, 1, True), {"device": "cuda:1"}, "models.target.device = cuda:1: torch sees only cuda:0 here"),
        (TWO_GPUS, {"device": "cuda:2"}, "models.target.device = cuda:2: torch sees only cuda:0 to cuda:1 here"),
        (
            TWO_GPUS,
            {"weights": "int8_split"},
            "models.target.weights = int8_split need the CPU, and device = auto is cuda:0 here: set device = cpu",
        ),
        (
            TWO_GPUS,
            {"weights": "int8"},
            "models.target.weights = int8 need the CPU, and device = auto is cuda:0 here: set device = cpu",
        ),
        (
            CPU_ONLY,
            {"attention": "flash_attn"},
            "models.target.attention = flash_attn needs a CUDA device, and device = auto is the CPU here",
        ),
        (
            Machine(1, 1, False),
            {"attention": "flash_attn"},
            "models.target.attention = flash_attn: flash-attn >=2.8,<3 is not installed; attention = auto does without "
            "it",
        ),
        (
            Machine(2, 2, True),
            {"tp_plan": "auto"},
            "models.target.tp_plan = auto over WORLD_SIZE = 2 processes is for a later release: start one process, "
            "on a device that holds the whole model",
        ),
    ],
)
def test_what_stands_in_the_way_is_named(machine: Machine, target: dict[str, Any], message: str) -> None:
    assert list(obstacles(settings(target), machine)) == [message]


def test_both_models_are_looked_at() -> None:
    found = list(obstacles(settings({"device": "cuda"}, {"device": "cuda:5"}), CPU_ONLY))
    assert [line.partition(".device")[0] for line in found] == ["models.target", "models.draft"]


@pytest.mark.parametrize("machine", [CPU_ONLY, TWO_GPUS, Machine(1, 1, False)])
def test_defaults_run_anywhere_and_one_process_needs_no_plan(machine: Machine) -> None:
    assert not list(obstacles(settings({"tp_plan": "auto"}, {}), machine))


def test_the_machine_is_told_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert Machine.here(settings({"device": "cpu"})).processes == 4
    monkeypatch.delenv("WORLD_SIZE")
    assert Machine.here(settings({})).processes == 1
