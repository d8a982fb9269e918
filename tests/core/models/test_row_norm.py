"""RowNorm takes the place of what computes the same, and of nothing else."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from core.models.loader import load_model
from core.models.row_norm import RowNorm, row_norm
from tests.core.models.tiny import save_model


class SumRMSNorm(nn.Module):
    """Called an RMS norm, and is none."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).sum(-1, keepdim=True) + self.eps).sqrt() * self.weight


def randomised(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        module.weight.copy_(torch.randn(module.weight.shape, generator=torch.Generator().manual_seed(1)))
    return module


@pytest.mark.parametrize("norm", [Qwen2RMSNorm, Gemma2RMSNorm])
@pytest.mark.parametrize("shape", [(1, 1, 96), (1, 7, 96), (1, 3, 4, 96)])
def test_it_computes_what_the_module_did(norm: type[nn.Module], shape: tuple[int, ...]) -> None:
    """Gemma's weight is what is added to 1."""
    module = randomised(norm(96))
    stand_in = row_norm(module)
    assert stand_in is not None
    x = torch.randn(shape) * 3
    with torch.no_grad():
        torch.testing.assert_close(stand_in(x), module(x), rtol=3e-6, atol=1e-6)
        strided = torch.randn(5, 192)[:, 40:136]
        torch.testing.assert_close(stand_in(strided), module(strided), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize(
    "module", [SumRMSNorm(96), nn.LayerNorm(96), CohereLayerNorm(96), nn.RMSNorm(96), nn.Linear(8, 8)]
)
def test_others_stay_what_they_are(module: nn.Module) -> None:
    assert row_norm(module) is None


def test_rows_are_normalised_each_by_itself() -> None:
    norm = RowNorm(torch.randn(96), 1e-6)
    x = torch.randn(6, 96)
    assert torch.equal(norm(x)[4], norm(x[4:5])[0])


def test_what_its_kernel_would_misread_is_refused() -> None:
    norm = RowNorm(torch.randn(96), 1e-6)
    with pytest.raises(TypeError, match="bfloat16"):
        norm(torch.randn(3, 96).bfloat16())
    with pytest.raises(ValueError, match="95"):
        norm(torch.randn(3, 95))
    with pytest.raises(TypeError, match="float16"):
        norm.half()(torch.randn(3, 96))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mixtral", "olmo2"])
def test_no_other_root_mean_square_norm_is_left_in_a_packed_model(family: str, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    modules = list(load_model(tmp_path, "fp16").model.modules())
    assert any(isinstance(module, RowNorm) for module in modules)
    assert not any("RMSNorm" in type(module).__name__ for module in modules)
