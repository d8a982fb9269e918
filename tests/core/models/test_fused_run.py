"""Consecutive layers as one call: what they compute layer by layer, with any number of threads, or not at all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from core.layout import RaggedLayout, Segment
from core.models import fused_run, layer_fusing
from core.models.fused_layer import FusedLayer
from core.models.int8_bytes import takes
from core.models.loader import LoadedModel, load_model
from core.models.packed_linear import WeightKind
from core.models.runner import ModelRunner
from core.models.team import team_size_address
from tests.core.models.tiny import save_model

pytestmark = pytest.mark.skipif(
    not takes(64) or not team_size_address(), reason="this machine multiplies 8-bit weights in another way"
)

TEXT = tuple(torch.randint(0, 199, (60,), generator=torch.Generator().manual_seed(3)).tolist())
FAMILIES = ["llama", "llama-bias", "llama3-rope", "llama-yarn-rope", "qwen2", "qwen2-window", "qwen3", "mistral-window"]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def layers(loaded: LoadedModel) -> list[FusedLayer]:
    return list(loaded.model.base_model.layers)


def logits(loaded: LoadedModel) -> Tensor:
    """A prompt, then two of its tokens one by one beside a piece of another prompt."""
    runner = ModelRunner(loaded, 8, 16)
    out = [runner.forward(RaggedLayout.build([Segment(TEXT[:40], 0, (3, 1, 6), 40)], 16))]
    for at in (40, 41):
        begin = 9 * (at - 40)
        segments = [Segment(TEXT[at : at + 1], at, (3, 1, 6), 1), Segment(TEXT[begin : begin + 9], begin, (0, 2), 9)]
        out.append(runner.forward(RaggedLayout.build(segments, 16)))
    return torch.cat(out)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each forward that went through a run from here on."""
    rows: list[int] = []
    run = fused_run.FusedRun._run

    def noting(self: Any, x: Tensor, *others: Any) -> Tensor:
        rows.append(x.shape[1])
        return run(self, x, *others)

    monkeypatch.setattr(fused_run.FusedRun, "_run", noting)
    return rows


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weights", ["int8_mixed", "int8_split", "int8"])
def test_a_run_computes_what_its_layers_compute(
    family: str, weights: WeightKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, family, initializer_range=0.1)
    loaded = load_model(tmp_path, weights)
    rows = counted(monkeypatch)
    together = logits(loaded)
    assert rows == [40, 10, 10]
    for layer in layers(loaded):
        layer.join(None)
    one_by_one = logits(loaded)
    assert rows == [40, 10, 10]
    assert (together - one_by_one).norm() <= 1e-3 * one_by_one.norm()


def test_threads_make_no_difference(threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do more of them than there are processors, or than rows."""
    save_model(tmp_path, "qwen2", initializer_range=0.1)
    loaded = load_model(tmp_path, "int8_mixed")
    monkeypatch.setattr(fused_run, "ALONE", 1)
    seen = []
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        seen.append(logits(loaded))
    assert all(torch.equal(seen[0], other) for other in seen[1:])


def test_half_precision_layers_run_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, "llama")
    loaded = load_model(tmp_path, "fp16")
    assert all(isinstance(layer, FusedLayer) for layer in layers(loaded))
    rows = counted(monkeypatch)
    logits(loaded)
    assert rows == []


def test_layers_that_are_not_neighbours_are_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other layer of this family turns nothing and keeps its own code."""
    save_model(tmp_path, "smollm3", num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0])
    loaded = load_model(tmp_path, "int8")
    assert [isinstance(layer, FusedLayer) for layer in layers(loaded)] == [True, False, True, False]
    rows = counted(monkeypatch)
    logits(loaded)
    assert rows == [40, 40, 10, 10, 10, 10]


def test_a_model_that_does_something_between_its_layers_keeps_doing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "llama", initializer_range=0.1)
    join, hooks = layer_fusing._join, []

    def double(model: Any, fused: list[FusedLayer]) -> None:
        hooks.extend(layer.register_forward_hook(lambda layer, args, out: 2 * out) for layer in fused)
        join(model, fused)

    monkeypatch.setattr(layer_fusing, "_join", double)
    loaded = load_model(tmp_path, "int8")
    assert len(hooks) == len(layers(loaded)) == 2
    rows = counted(monkeypatch)
    doubled = logits(loaded)
    assert rows == []
    for hook in hooks:
        hook.remove()
    assert not torch.allclose(doubled, logits(loaded), atol=0.1)


def test_layers_that_turn_by_different_angles_are_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little that changes: what both ways make of a few random rows need not show it."""
    save_model(tmp_path, "llama", initializer_range=0.1)
    join = layer_fusing._join

    def turned(layer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        cos, sin = kwargs["position_embeddings"]
        return args, kwargs | {"position_embeddings": (cos.clone(), sin.clone())}

    def differ(model: Any, fused: list[FusedLayer]) -> None:
        fused[1].register_forward_pre_hook(turned, with_kwargs=True)
        join(model, fused)

    monkeypatch.setattr(layer_fusing, "_join", differ)
    loaded = load_model(tmp_path, "int8")
    rows = counted(monkeypatch)
    logits(loaded)
    assert rows == []


def test_a_run_that_is_fed_something_else_in_the_middle_says_so(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    loaded = load_model(tmp_path, "int8")
    second = layers(loaded)[1]
    hook = second.register_forward_pre_hook(lambda _, args: (args[0] + 1, *args[1:]))
    with pytest.raises(RuntimeError, match="between a model's layers"):
        logits(loaded)
    hook.remove()
    assert torch.isfinite(logits(loaded)).all()
