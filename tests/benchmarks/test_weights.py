"""benchmarks.weights: what it calls quality, and what it says a step reads."""

from pathlib import Path

import pytest
import torch

from benchmarks.bandwidth import Bandwidth
from benchmarks.weights import compare, last_rows, over_reading, runner_of, step_bytes
from core.models.loader import load_model
from core.models.packed_linear import packing_available
from tests.core.models.tiny import save_model

pytestmark = pytest.mark.skipif(not packing_available(), reason="this CPU has no FBGEMM kernels")

TEXTS = [list(range(3, 25)), list(range(90, 100))]


def test_finer_weights_are_nearer_to_the_reference(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", initializer_range=0.1)
    reference = [last_rows(runner_of(tmp_path, "float32", 32), text, 12) for text in TEXTS]
    torch.testing.assert_close(reference[0].exp().sum(-1), torch.ones(12))
    fp16, split, mixed, int8 = (
        compare(reference, runner_of(tmp_path, kind, 32), TEXTS, 12)
        for kind in ("fp16", "int8_split", "int8_mixed", "int8")
    )
    assert 0 <= fp16.kl < split.kl <= mixed.kl <= int8.kl
    assert fp16.rows == 22
    assert fp16.worst_kl >= fp16.kl
    assert fp16.top1 > 0.9


def test_a_step_reads_every_matrix_once_and_no_embedding(tmp_path: Path) -> None:
    oracle = save_model(tmp_path, "llama", tie_word_embeddings=False)
    matrices = sum(p.numel() for name, p in oracle.named_parameters() if p.dim() == 2 and "embed" not in name)
    vectors = sum(p.numel() for p in oracle.parameters() if p.dim() == 1)
    assert step_bytes(load_model(tmp_path, "fp16")) == 2 * matrices + 4 * vectors
    assert step_bytes(load_model(tmp_path, "int8_split")) == matrices + 4 * vectors


def test_a_bandwidth_is_the_fastest_reader_of_the_moment() -> None:
    bandwidth = Bandwidth(1 << 16)
    speeds = [bandwidth.measure() for _ in range(3)]
    assert min(speeds) > 0
    assert max(speeds) == max(bandwidth.best.values())
    assert len(bandwidth.best) == 3


def test_steps_are_held_against_the_bandwidth_around_each() -> None:
    """2 ms at 1 GB a second and 1 ms at 2 are the same multiple of reading a megabyte."""
    assert over_reading([2.0, 1.0, 6.0], 1_000_000, [1e9, 2e9, 2e9]) == {"median": 2.0, "min": 2.0, "max": 12.0}
