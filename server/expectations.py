"""A model's config: from its files where they are here, else from what the configuration expects of it."""

from pathlib import Path
from typing import Any

from core.models.errors import InvalidModelFile
from core.models.kv_cache import kv_shape
from core.models.model_config import config_class, parse_config, read_config
from server.model_settings import ExpectedConfig, ModelSettings


class ExpectationError(Exception):
    """What the configuration expects contradicts a model's config.json, or cannot be; the message names the key."""


def model_config(key: str, model: ModelSettings, folder: Path | None) -> Any | None:
    """transformers' config object; None if the files are not here and nothing says what they will be.

    key: the model's in the settings. UnsupportedModel or InvalidModelFile from the files; ExpectationError if they
    contradict the configuration, or if what that says is no config.
    """
    if folder is None:
        return None if model.expect is None else _expected(key, model.expect)
    config = read_config(folder)
    if model.expect is not None:
        _compare(key, model, model.expect, config)
    return config


def _expected(key: str, expect: ExpectedConfig) -> Any:
    values, kind = expect.model_dump(exclude={"architecture"}, exclude_none=True), config_class(expect.architecture)
    known = {"head_dim", *kind.attribute_map}  # which transformers reads from any config that has it
    if strange := [name for name in values if name not in known and not hasattr(kind, name)]:
        raise ExpectationError(f"{key}.expect.{strange[0]}: {expect.architecture} has no such key in its config")
    try:
        return parse_config({"architectures": [expect.architecture], **values})
    except InvalidModelFile as error:
        reason = str(error.__cause__).splitlines()[-1].strip().removeprefix("ValueError: ")
        raise ExpectationError(f"{key}.expect is no {expect.architecture}'s config: {reason}") from error


def _compare(key: str, model: ModelSettings, expect: ExpectedConfig, config: Any) -> None:
    """Only what the configuration says; what it leaves out is the files' to say."""
    for name, value in expect.model_dump(exclude_none=True).items():
        real = {"architecture": config.architectures[0], "head_dim": kv_shape(config)[1]}.get(name)
        real = getattr(config, name, None) if real is None else real
        if real != value:
            raise ExpectationError(f"{key}.expect.{name} = {value}, but {model.label}'s own config says {real}")
