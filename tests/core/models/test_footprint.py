"""weight_bytes says, from the config alone, what a loaded model holds."""

from pathlib import Path

import pytest
import torch

from core.models.footprint import parameters, weight_bytes
from core.models.loader import LoadedModel, load_model
from core.models.packed_linear import PACKED, Fp16Linear, PackedLinear
from tests.core.models.tiny import FAMILIES, save_model

CASES = ["llama", "llama-bias", "qwen2", "gemma2", "mixtral", "glm4-moe", "gpt2", "opt"]


@pytest.mark.parametrize("family", CASES)
def test_parameters_are_counted(family: str, tmp_path: Path) -> None:
    oracle = save_model(tmp_path, family)
    assert parameters(load_model(tmp_path, "float32").config) == oracle.num_parameters()


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_weights_take_the_bytes_foretold(family: str, weights: str, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    loaded = load_model(tmp_path, weights)  # type: ignore[arg-type]
    assert weight_bytes(loaded.config, loaded.weights, "cpu") == held_bytes(loaded)


@pytest.mark.parametrize("weights", PACKED)
@pytest.mark.parametrize("family", CASES)
def test_packed_weights_take_the_bytes_foretold(family: str, weights: str, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    loaded = load_model(tmp_path, weights)  # type: ignore[arg-type]
    assert weight_bytes(loaded.config, loaded.weights, "cpu") == held_bytes(loaded)


def test_half_precision_elsewhere_is_two_bytes_a_weight(tmp_path: Path) -> None:
    oracle = save_model(tmp_path, "llama")
    config = load_model(tmp_path, "float32").config
    assert weight_bytes(config, "fp16", "cuda") == 2 * oracle.num_parameters()


def held_bytes(loaded: LoadedModel) -> int:
    """What the modules keep: their tensors, and of packed layers what unpacking gives back."""
    seen, total = set[int](), 0
    for module in loaded.model.modules():
        computed = module._non_persistent_buffers_set if not isinstance(module, PackedLinear) else set()
        own = dict(module.named_parameters(recurse=False)) | {
            name: buffer
            for name, buffer in module.named_buffers(recurse=False)
            if name not in computed or buffer.dtype == torch.float16
        }
        for tensor in own.values():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                total += tensor.numel() * tensor.itemsize
        if isinstance(module, Fp16Linear):
            weight, bias = torch.ops.quantized.linear_unpack_fp16(module._packed)
            total += weight.numel() * 2 + (0 if bias is None else bias.numel() * 4)
        elif isinstance(module, PackedLinear):
            weight, _ = module.unpacked()
            total += weight.numel() + weight.shape[0] * (4 + 4 + 4)  # and scale, zero point, column sum
    return total
