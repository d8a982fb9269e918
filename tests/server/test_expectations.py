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
