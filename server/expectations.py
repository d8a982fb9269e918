"""A model's config: from its files where they are here, else from what the configuration expects of it."""

from pathlib import Path
from typing import Any

from core.models.kv_cache import kv_shape
from core.models.model_config import parse_config, read_config
from server.model_settings import ExpectedConfig, ModelSettings


class ExpectationError(Exception):
    """A model's config.json contradicts the configuration; the message names key, both values and the model."""


def model_config(key: str, model: ModelSettings, folder: Path | None) -> Any | None:
    """transformers' config object; None if the files are not here and nothing says what they will be.

    key: the model's in the settings. UnsupportedModel or InvalidModelFile from the files, ExpectationError.
    """
    if folder is None:
        return None if model.expect is None else parse_config(_values(model.expect))
    config = read_config(folder)
    if model.expect is not None:
        _compare(key, model, model.expect, config)
    return config


def _values(expect: ExpectedConfig) -> dict[str, Any]:
    values = expect.model_dump(exclude={"architecture"}, exclude_none=True)
    return {"architectures": [expect.architecture], **values}


def _compare(key: str, model: ModelSettings, expect: ExpectedConfig, config: Any) -> None:
    expected = {**expect.model_dump(), "head_dim": kv_shape(parse_config(_values(expect)))[1]}
    for name, value in expected.items():
        real = {"architecture": config.architectures[0], "head_dim": kv_shape(config)[1]}.get(name)
        real = getattr(config, name, None) if real is None else real
        if real != value:
            raise ExpectationError(f"{key}.expect.{name} = {value}, but {model.label}'s own config says {real}")
