"""Two processes share a model, over gloo on the CPU, and each computes the logits of the whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core.models import loader
from core.models.loader import UnsupportedModel, load_model
from core.models.runner import ModelRunner
from tests.core.models.shard_worker import replayed
from tests.core.models.test_runner import BLOCK, BLOCKS
from tests.core.models.tiny import save_model

ROOT = Path(__file__).parents[3]
# family -> key heads in each process's cache; OLMo 2's plan gathers them, as does Phi 3's
SHARED = {"llama": 1, "qwen2": 1, "qwen3": 1, "gemma2": 1, "mixtral": 1, "olmo2": 2, "phi3": 2}


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    sizes = {}
    for family in SHARED:
        oracle = save_model(tmp_path / family, family)
        sizes[family] = oracle.num_parameters()
        torch.save(
            replayed(ModelRunner(load_model(tmp_path / family, "float32"), BLOCKS, BLOCK)),
            tmp_path / family / "expected.pt",
        )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m", "tests.core.models.shard_worker"]
    run = subprocess.run(
        launcher + [str(tmp_path / family) for family in SHARED],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines() if line.split()[:1] and line.split()[0] in SHARED]
    assert len(lines) == 2 * len(SHARED)
    for family, difference, heads, weights in lines:
        assert float(difference) < 5e-5, family
        assert int(heads) == SHARED[family], family
        assert int(weights) < 0.8 * sizes[family], family


def test_alone_a_plan_changes_nothing_but_must_exist(tmp_path: Path) -> None:
    oracle = save_model(tmp_path / "llama", "llama")
    loaded = load_model(tmp_path / "llama", "float32", tp_plan="auto")
    assert torch.equal(loaded.model.lm_head.weight, oracle.lm_head.weight)
    save_model(tmp_path / "gpt2", "gpt2")
    with pytest.raises(UnsupportedModel, match="GPT2LMHeadModel has no tensor parallel plan"):
        load_model(tmp_path / "gpt2", "float32", tp_plan="auto")


def test_what_cannot_be_shared_is_refused_before_the_processes_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "llama")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UnsupportedModel, match="2 key heads cannot be shared evenly between 4"):
        load_model(tmp_path, "float32", tp_plan="auto")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(loader, "packing_available", lambda: True)
    with pytest.raises(UnsupportedModel, match="packed fp16"):
        load_model(tmp_path, "fp16", tp_plan="auto")
    assert load_model(tmp_path, "float32").config.num_key_value_heads == 2  # whole, where nobody asked to share
