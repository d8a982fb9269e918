"""Every architecture on a real CUDA device, as the server loads it: in half precision, by either attention backend."""

from pathlib import Path

import pytest
import torch

from core.layout import RaggedLayout, Segment
from core.models.architectures import SUPPORTED
from core.models.attention import BACKENDS
from core.models.loader import load_model
from core.models.runner import ModelRunner
from core.models.scratch import HeaviestRound, measure_scratch
from tests.core.models.tiny import FAMILIES, save_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CUDA = torch.device("cuda", 0)
DTYPES = {"bfloat16": torch.bfloat16, "fp16": torch.float16}
WITH_EXPERTS = [family for family, (name, _) in FAMILIES.items() if SUPPORTED[name].experts]


def need(backend: str, weights: str) -> None:
    obstacle = BACKENDS[backend].obstacle(CUDA, DTYPES[weights], 16)
    if obstacle is not None:
        pytest.skip(f"{backend} {obstacle}")


def layouts() -> list[RaggedLayout]:
    """A prompt; then the rest of it, beside another one and a decode row behind each, in blocks of 256."""
    first = [Segment(tuple(range(3, 43)), 0, (2,), 40)]
    second = [Segment(tuple(range(50, 57)), 40, (2,), 7), Segment(tuple(range(60, 90)), 0, (0,), 30)]
    third = [Segment((9,), 47, (2,), 1), Segment((8, 7), 30, (0,), 2)]
    return [RaggedLayout.build(segments, 256) for segments in (first, second, third)]


@pytest.mark.parametrize("backend", ["sdpa", "flash_attn"])
@pytest.mark.parametrize("weights", ["bfloat16", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_what_it_computes_in_float32_on_the_cpu(
    family: str, weights: str, backend: str, tmp_path: Path
) -> None:
    """The median over rows of the relative error, for half precision may send a row to another expert. On the CPU
    it is less than 4 epsilons for every family."""
    need(backend, weights)
    save_model(tmp_path, family)
    exact = ModelRunner(load_model(tmp_path, "float32"), 3, 256)
    runner = ModelRunner(load_model(tmp_path, weights, "cuda"), 3, 256, backend)  # type: ignore[arg-type]
    errors = []
    for layout in layouts():
        want, got = exact.forward(layout), runner.forward(layout).cpu()
        errors.append((got - want).norm(dim=1) / want.norm(dim=1))
    assert torch.cat(errors).median() < 10 * torch.finfo(DTYPES[weights]).eps


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_experts_do_not_wait_where_torch_groups_their_products(family: str, tmp_path: Path) -> None:
    """Elsewhere they do, once for each product (docs/architecture.md)."""
    if torch.cuda.get_device_capability(CUDA) not in ((9, 0), (10, 0)):
        pytest.skip("torch has a grouped product for bfloat16 on compute capability 9.0 and 10.0 only")
    save_model(tmp_path, family)
    runner = ModelRunner(load_model(tmp_path, "bfloat16", "cuda"), 3, 256)
    layout = layouts()[1]
    runner.forward(layout)  # loads kernels, allocates
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner.forward(layout)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_rounds_memory_is_measured_and_given_back(tmp_path: Path) -> None:
    save_model(tmp_path, "llama", vocab_size=50_000)
    loaded = load_model(tmp_path, "bfloat16", "cuda")
    before = torch.cuda.memory_allocated(CUDA)
    small, large = (
        measure_scratch(loaded, "sdpa", 16, HeaviestRound(rows=512, logit_rows=rows, num_drafts=4, max_context=256))
        for rows in (20, 400)
    )
    assert torch.cuda.memory_allocated(CUDA) == before
    assert small > 20 * 50_000 * 4
    assert large - small > 300 * 50_000 * 4
    # The logits in both dtypes, and what is kept aside for log-probabilities; ranking works on few rows at a time.
    assert large < 400 * 50_000 * (2 + 4 + 4) + 100 * 2 * (1 << 22)
