"""Fused siblings: the products of each alone, made once, whoever asks in whatever order."""

from itertools import permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from core.models.fused_linear import FusedPart, fuse, siblings
from core.models.loader import load_model
from core.models.model_config import empty_model, read_config
from core.models.packed_linear import PACKED, Fp16Linear, PackedLinear, packing_available
from core.models.runner import ModelRunner
from tests.core.models.test_packed_linear import layer_parts
from tests.core.models.test_runner import BLOCK, BLOCKS, Replay
from tests.core.models.tiny import FAMILIES, save_model

pytestmark = pytest.mark.skipif(not packing_available(), reason="this CPU has no FBGEMM kernels")

SIZES = (40, 16, 24)


def parts_and_oracles(pack: type[PackedLinear], biases: tuple[bool, ...]) -> tuple[list[FusedPart], list[PackedLinear]]:
    layers, oracles = [], []
    for seed, (size, bias) in enumerate(zip(SIZES, biases, strict=True)):
        weight, b = layer_parts(size, 72, seed)
        layers.append({"weight": weight, "bias": b} if bias else {"weight": weight})
        oracles.append(pack(weight, b if bias else None))
    return fuse(layers, pack), oracles


def multiplications(layer: nn.Module) -> list[int]:
    """Grows by the rows of each call of the layer."""
    calls: list[int] = []
    layer.register_forward_hook(lambda _, args, __: calls.append(args[0].numel() // args[0].shape[-1]))
    return calls


@pytest.mark.parametrize("biases", [(True, True, True), (False, False, False), (True, False, True)])
@pytest.mark.parametrize("pack", PACKED.values())
def test_a_part_gives_its_own_layers_product(pack: type[PackedLinear], biases: tuple[bool, ...]) -> None:
    parts, oracles = parts_and_oracles(pack, biases)
    x = torch.randn(1, 5, 72)
    for part, oracle in zip(parts, oracles, strict=True):
        assert (part.in_features, part.out_features) == (oracle.in_features, oracle.out_features)
        torch.testing.assert_close(part(x), oracle(x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("order", permutations(range(3)))
def test_one_product_serves_all_parts_in_any_order(order: tuple[int, ...]) -> None:
    parts, oracles = parts_and_oracles(Fp16Linear, (True, True, True))
    calls = multiplications(parts[0].linear)
    for _ in range(3):
        x = torch.randn(2, 72)
        for index in order:
            torch.testing.assert_close(parts[index](x), oracles[index](x), atol=1e-6, rtol=1e-6)
    assert calls == [2, 2, 2]


def test_nothing_is_kept_once_every_part_was_read() -> None:
    parts, _ = parts_and_oracles(Fp16Linear, (False, False, False))
    x = torch.randn(2, 72)
    for part in parts:
        part(x)
    shared = parts[0]._shared
    assert shared._input is None
    assert shared._product is None


def test_other_tensors_and_repeated_questions_are_answered_rightly() -> None:
    parts, oracles = parts_and_oracles(Fp16Linear, (True, True, True))
    first, second = torch.randn(2, 72), torch.randn(3, 72)

    def check(index: int, x: Tensor) -> None:
        torch.testing.assert_close(parts[index](x), oracles[index](x), atol=1e-6, rtol=1e-6)

    for index, x in [(0, first), (0, second), (1, first), (1, first), (2, second), (0, first), (2, first)]:
        check(index, x)


def test_siblings_of_different_inputs_stay_apart() -> None:
    model = nn.Module()
    model.mlp = nn.Module()
    model.mlp.gate_proj, model.mlp.up_proj = nn.Linear(8, 4), nn.Linear(6, 4)
    assert siblings(model) == []
    model.mlp.up_proj = nn.Linear(8, 5)
    assert siblings(model) == [("mlp.gate_proj", "mlp.up_proj")]


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_one_input_are_fused_and_multiplied_once_a_forward(family: str, tmp_path: Path) -> None:
    """In every supported architecture. What else shares an input lies in other modules of a parallel block, or is
    one more gate."""
    oracle = save_model(tmp_path, family)
    shared = [set(names) for names in _sharing_an_input(oracle)]
    groups = siblings(empty_model(read_config(tmp_path)))
    assert all(any(readers.issuperset(group) for readers in shared) for group in groups)
    assert all(any(readers.issuperset(group) for group in groups) for readers in shared)
    # Beside this backend a fused layer runs the one it stands for, which calls each projection.
    runner = ModelRunner(load_model(tmp_path, "fp16"), BLOCKS, BLOCK, "sdpa")
    modules = runner.loaded.model.named_modules(remove_duplicate=False)
    names = {name.replace(".layer.", "."): module for name, module in modules}
    calls = [multiplications(names[group[0]].linear) for group in groups]  # type: ignore[union-attr]
    replay = Replay(runner, [20], True)
    replay.round({0: 15}, {0: 15})
    replay.round({0: 5}, {0: 5})
    assert calls == [[15, 5]] * len(groups)


def _sharing_an_input(model: nn.Module) -> set[tuple[str, ...]]:
    """Names of plain linear layers that one forward calls with one and the same tensor."""
    readers: dict[int, list[str]] = {}
    kept: list[Tensor] = []  # so that no two tensors get one id
    for name, module in model.named_modules():
        if type(module) is nn.Linear:

            def note(_: nn.Module, args: tuple[Tensor, ...], name: str = name) -> None:
                kept.append(args[0])
                readers.setdefault(id(args[0]), []).append(name)

            module.register_forward_pre_hook(note)
    with torch.no_grad():
        model(torch.arange(6).unsqueeze(0))
    return {tuple(names) for names in readers.values() if len(names) > 1}
