import json
from pathlib import Path
from typing import Any

import pytest

from core.models.kv_cache import kv_shape
from server.expectations import ExpectationError, model_config
from server.model_settings import TargetSettings
from tests.server.test_assembly import save_pair
from tests.server.test_settings import EXPECT


def settings(**changes: Any) -> TargetSettings:
    return TargetSettings.model_validate({"name": "T", "source": "./t", "expect": {**EXPECT, **changes}})


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pair(tmp_path_factory.mktemp("model") / "target")


def vocabulary(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def test_a_model_that_is_not_here_is_what_is_expected() -> None:
    config = model_config("models.target", settings(head_dim=32), None)
    assert (config.architectures, config.num_hidden_layers, config.vocab_size) == (["LlamaForCausalLM"], 2, 100)
    assert kv_shape(config) == (2, 32)
    assert kv_shape(model_config("models.target", settings(), None)) == (2, 16)


def test_nothing_is_known_of_a_model_that_is_not_here_and_not_described() -> None:
    assert model_config("models.target", TargetSettings.model_validate({"source": "./t"}), None) is None


def test_real_files_that_are_as_expected_are_read(real: Path) -> None:
    config = model_config("models.target", settings(vocab_size=vocabulary(real)), real)
    assert config.max_position_embeddings == 256  # which nobody expected


@pytest.mark.parametrize(
    ("key", "expected", "found"),
    [
        ("num_hidden_layers", 3, 2),
        ("num_key_value_heads", 4, 2),
        ("head_dim", 32, 16),
        ("tie_word_embeddings", True, False),
        ("architecture", "MistralForCausalLM", "LlamaForCausalLM"),
    ],
)
def test_real_files_that_are_not_are_an_error_that_names_both(real: Path, key: str, expected: Any, found: Any) -> None:
    changed = settings(**{"vocab_size": vocabulary(real), key: expected})
    with pytest.raises(ExpectationError) as caught:
        model_config("models.draft", changed, real)
    assert str(caught.value) == f"models.draft.expect.{key} = {expected}, but T's own config says {found}"


def test_what_is_not_expected_is_not_compared(real: Path) -> None:
    expected = {"architecture": EXPECT["architecture"], "num_hidden_layers": 2, "num_attention_heads": 4}
    least = {"vocab_size": vocabulary(real), "hidden_size": 64, **expected}
    target = TargetSettings.model_validate({"name": "T", "source": "./t", "expect": least})
    assert model_config("models.target", target, real).num_key_value_heads == 2


def test_a_key_left_out_is_the_architectures_default() -> None:
    for architecture, tied in (("Gemma2ForCausalLM", True), ("LlamaForCausalLM", False)):
        config = model_config("models.target", settings(architecture=architecture), None)
        assert config.tie_word_embeddings is tied


GPT2 = {"architecture": "GPT2LMHeadModel", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2}


def test_an_architecture_with_names_of_its_own_can_be_described() -> None:
    target = TargetSettings.model_validate({"source": "./t", "expect": {**GPT2, "num_attention_heads": 4}})
    config = model_config("models.target", target, None)
    assert (config.n_embd, config.n_layer, kv_shape(config)) == (64, 2, (4, 16))


@pytest.mark.parametrize("key", ["intermediate_size", "num_key_value_heads"])
def test_a_key_that_the_architecture_does_not_have_is_refused_by_name(key: str) -> None:
    expect = {**GPT2, "num_attention_heads": 4, key: 4}
    target = TargetSettings.model_validate({"source": "./t", "expect": expect})
    with pytest.raises(
        ExpectationError, match=rf"^models\.target\.expect\.{key}: GPT2LMHeadModel has no such key in its config$"
    ):
        model_config("models.target", target, None)


def test_expectations_that_no_config_can_meet_are_the_configurations_fault() -> None:
    with pytest.raises(ExpectationError, match=r"^models\.draft\.expect is no LlamaForCausalLM's config: The hidden"):
        model_config("models.draft", settings(hidden_size=100, num_attention_heads=3, num_key_value_heads=3), None)
