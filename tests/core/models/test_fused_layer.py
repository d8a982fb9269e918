"""Decoder layers in a few passes: which are taken for what they are, and that they compute the same."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.layout import RaggedLayout, Segment
from core.models.fused_layer import FusedLayer
from core.models.layer_fusing import fuse_layers
from core.models.loader import LoadedModel, load_model
from core.models.packed_linear import packing_available
from core.models.runner import ModelRunner
from tests.core.models.tiny import save_model

pytestmark = pytest.mark.skipif(not packing_available(), reason="this CPU lacks the packed kernels")

TEXT = tuple(torch.randint(0, 199, (60,), generator=torch.Generator().manual_seed(3)).tolist())
FUSED = ["llama", "llama-bias", "llama3-rope", "llama-yarn-rope", "qwen2", "qwen2-window", "qwen3", "mistral-window"]


def unfused(loaded: LoadedModel) -> LoadedModel:
    """The same with transformers' own layers."""
    layers = loaded.model.base_model.layers
    for index, layer in enumerate(layers):
        if isinstance(layer, FusedLayer):
            layers[index] = layer.layer
    return loaded


def kinds(loaded: LoadedModel) -> list[bool]:
    """Of each layer, whether it is fused."""
    return [isinstance(layer, FusedLayer) for layer in loaded.model.base_model.layers]


def logits(loaded: LoadedModel, backend: str | None = None) -> Tensor:
    """The text in pieces, its last eight tokens one by one."""
    runner, rows = ModelRunner(loaded, 8, 16, backend), []
    cuts = [0, 7, 40, *range(52, 61)]
    for begin, end in pairwise(cuts):
        segments = [Segment(TEXT[begin:end], begin, (3, 1, 6, 0), end - begin)]
        rows.append(runner.forward(RaggedLayout.build(segments, 16)))
    return torch.cat(rows)


@pytest.mark.parametrize("family", FUSED)
def test_a_fused_layer_computes_what_the_layer_computes(family: str, tmp_path: Path) -> None:
    """fp16 weights: products that do not turn a last bit into more."""
    save_model(tmp_path, family)
    loaded = load_model(tmp_path, "fp16")
    assert all(kinds(loaded))
    fused = logits(loaded)
    torch.testing.assert_close(fused, logits(unfused(loaded)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("weights", ["int8_split", "int8"])
def test_with_8_bit_weights_it_is_as_near_as_rounding_lets_it(weights: Any, tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", initializer_range=0.1)
    loaded = load_model(tmp_path, weights)
    assert all(kinds(loaded))
    fused, plain = logits(loaded), logits(unfused(loaded))
    assert (fused - plain).norm() < 0.02 * plain.norm()


def test_through_another_backend_a_fused_model_runs_its_own_layers(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    loaded = load_model(tmp_path, "fp16")
    through_sdpa = logits(loaded, "sdpa")
    assert torch.equal(through_sdpa, logits(unfused(loaded), "sdpa"))


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("granite", [False, False]),  # residuals are scaled
        ("ministral3-beyond", [False, False]),  # queries are scaled from a position on
        ("smollm3", [True, False]),  # every other layer turns nothing
        ("mixtral", [False, False]),
        ("gemma", [False, False]),  # another activation
        ("gemma2", [False, False]),
        ("olmo2", [False, False]),
    ],
)
def test_layers_that_do_something_else_are_left_alone(family: str, expected: list[bool], tmp_path: Path) -> None:
    save_model(tmp_path, family)
    assert kinds(load_model(tmp_path, "fp16")) == expected


def test_another_activation_shows_though_it_adds_little_to_the_residual(tmp_path: Path) -> None:
    save_model(tmp_path, "llama", initializer_range=0.02, hidden_act="gelu")
    assert kinds(load_model(tmp_path, "fp16")) == [False, False]


def test_a_fused_layer_refuses_what_might_change_its_answer(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    loaded = load_model(tmp_path, "fp16")
    fused = loaded.model.base_model.layers[0]
    asked: dict[str, Any] = {}

    def ask(_: nn.Module, args: tuple[Tensor, ...], others: dict[str, Any]) -> None:
        asked.update(others, **dict(zip(["hidden_states"], args, strict=False)))

    hook = fused.register_forward_pre_hook(ask, with_kwargs=True)
    logits(loaded)
    hook.remove()
    with pytest.raises(ValueError, match="sinks"):
        fused(**asked, sinks=torch.zeros(2))
    with pytest.raises(TypeError, match="float32"):
        fused(**{**asked, "hidden_states": asked["hidden_states"].bfloat16()})


def test_a_layer_of_the_right_parts_that_does_more_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    save_model(tmp_path, "llama")
    honest = LlamaDecoderLayer.forward

    def doubled(self: nn.Module, hidden_states: Tensor, *args: Any, **others: Any) -> Tensor:
        out: Tensor = honest(self, hidden_states, *args, **others)
        return out + 0.1 * hidden_states

    monkeypatch.setattr(LlamaDecoderLayer, "forward", doubled)
    assert kinds(load_model(tmp_path, "fp16")) == [False, False]


def test_fusing_a_fused_model_changes_nothing(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    loaded = load_model(tmp_path, "fp16")
    before = list(loaded.model.base_model.layers)
    assert fuse_layers(loaded.model) == 0
    assert list(loaded.model.base_model.layers) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_row_stays_its_own_affair(value: float, tmp_path: Path) -> None:
    """Neither a neighbour's nor a rolled back draft's."""
    save_model(tmp_path, "qwen2")
    loaded = load_model(tmp_path, "int8_split")
    broken, sound = 77, 78
    loaded.model.get_input_embeddings().weight[broken] = value

    def logits_beside(token: int) -> Tensor:
        runner = ModelRunner(loaded, 8, 16)
        runner.forward(RaggedLayout.build([Segment((5, 6), 0, (0,), 1), Segment((token,) * 3, 0, (1,), 1)], 16))
        drafts = [Segment((9, token), 2, (0,), 2), Segment((8,), 3, (1,), 1)]
        seen = [runner.forward(RaggedLayout.build(drafts, 16))]
        seen.append(runner.forward(RaggedLayout.build([Segment((7,), 3, (0,), 1)], 16)))
        assert torch.isfinite(seen[0][1:]).all() == (token == sound)
        return torch.cat([seen[0][:1], seen[1]])

    assert torch.equal(logits_beside(broken), logits_beside(sound))
