"""An embedding in half precision looks up what the table holds."""

import torch

from core.models.half_embedding import HalfEmbedding


def test_half_embedding_looks_up_float32_rows() -> None:
    weight = torch.randn(40, 72, generator=torch.Generator().manual_seed(1)) * 0.1
    out = HalfEmbedding(weight)(torch.tensor([[0, 3]]))
    assert out.dtype == torch.float32
    assert torch.equal(out[0], weight[[0, 3]].half().float())
