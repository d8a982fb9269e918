"""A row's numbers are the same to the bit in whatever forward it is computed (CPU): in any chunk, in any company.

That is what makes `strict` equal to `off` to the letter rather than up to rounding, and a loose answer the same
whether its prompt was cached or not.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.layout import RaggedLayout, Segment
from core.models.attention_sdpa import SdpaAttention
from core.models.loader import LoadedModel, load_model
from core.models.packed_linear import WeightKind, packing_available
from core.models.runner import ModelRunner
from tests.core.models.tiny import save_model

SIZE = 16
TEXT = tuple(torch.randint(0, 199, (70,), generator=torch.Generator().manual_seed(3)).tolist())
COMPANY = tuple(reversed(TEXT))
KINDS: tuple[WeightKind, ...] = ("fp16", "int8_split", "int8_mixed", "int8")
FAMILIES = {
    "llama": {},
    "qwen2": {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112, "head_dim": 16},
    "qwen3": {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
    "mistral": {"sliding_window": 24},
}

needs_packing = pytest.mark.skipif(not packing_available(), reason="this CPU lacks the packed kernels")


@pytest.fixture(scope="module", params=[(family, kind) for family in FAMILIES for kind in KINDS], ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    family, kind = request.param
    folder = tmp_path_factory.mktemp(family)
    save_model(folder, family, **FAMILIES[family])
    return load_model(folder, kind)


def logits_of_text(model: LoadedModel, cuts: list[int], blocks: list[int], company: int) -> Tensor:
    """[len(TEXT), vocab]: the text fed piece by piece, each beside a chunk of `company` other tokens (0: alone)."""
    runner = ModelRunner(model, 12, SIZE)
    rows = []
    for begin, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True):
        segments = [Segment(TEXT[begin:end], begin, tuple(blocks), end - begin)]
        if company:
            segments.append(Segment(COMPANY[:company], 0, tuple(range(7, 12)), 1))
        rows.append(runner.forward(RaggedLayout.build(segments, SIZE))[: end - begin])
    return torch.cat(rows)


@needs_packing
@settings(deadline=None, max_examples=6)
@given(
    cuts=st.sets(st.integers(1, len(TEXT) - 1), max_size=12).map(sorted),
    blocks=st.permutations(range(5)),
    company=st.sampled_from([0, 1, 9, 40]),
)
def test_logits_do_not_depend_on_the_shape_of_the_forward(
    model: LoadedModel, cuts: list[int], blocks: list[int], company: int
) -> None:
    token_by_token = logits_of_text(model, list(range(1, len(TEXT))), list(range(5)), 0)
    assert torch.equal(logits_of_text(model, cuts, blocks, company), token_by_token)


@settings(deadline=None)
@given(
    group=st.sampled_from([1, 2, 3, 5, 6, 7, 8]),
    context=st.sampled_from([0, 3, 15, 16, 500, 511, 700]) | st.integers(0, 900),
    rows=st.sampled_from([2, 3, 6, 11, 16, 33, 64]),
    dim=st.sampled_from([16, 64, 128]),
    seed=st.integers(0, 99),
)
def test_attention_of_a_row_does_not_depend_on_the_rows_beside_it(
    group: int, context: int, rows: int, dim: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    kv_heads, num_blocks = 2, 64
    keys, values = (torch.randn(num_blocks, SIZE, kv_heads, dim, generator=generator) for _ in range(2))
    query = torch.randn(rows, kv_heads * group, dim, generator=generator)
    blocks = tuple(range(num_blocks))

    def attend(first: int, count: int) -> Tensor:
        layout = RaggedLayout.build([Segment((0,) * count, context + first, blocks, 0)], SIZE)
        attention = SdpaAttention(layout, torch.float32, torch.device("cpu"))
        return attention(query[first : first + count], keys, values, dim**-0.5, None, None)

    together = attend(0, rows)
    assert torch.equal(together, torch.cat([attend(row, 1) for row in range(rows)]))
