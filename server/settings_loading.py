"""From a file, the environment and flags to Settings, and from a mistake in them to one clear line."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, InitSettingsSource, PydanticBaseSettingsSource

from server.settings import Settings

_PREFIX = "SLIPSTREAM_"
_SHORT = {f"{_PREFIX}API_KEYS": ("server", "api_keys")}
_NOT_SETTINGS = {f"{_PREFIX}CONFIG"}  # read by the command line
# A container platform describes a service named "slipstream" with variables of these names.
_SERVICE_LINKS = re.compile(rf"{_PREFIX}(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP)\w*)?)")

Loc = tuple[str | int, ...]


class SettingsYaml(yaml.SafeLoader):
    """A key given twice is a mistake, not a choice of the last one. Only true and false are booleans, as in YAML 1.2:
    `off` is a verifier's name. Where a boolean is wanted, pydantic takes the words as well."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


SettingsYaml.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if first not in "yYnNoO" or tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class ConfigError(Exception):
    """The configuration is wrong; str() has one line per mistake."""


def load_settings(file: Path, flags: Mapping[str, Any] | None = None) -> Settings:
    """Read `file`, lay the environment and then `flags` (nested, as the file) over it, and check the whole.

    ConfigError, one line a mistake, if the file cannot be read or the outcome is not valid.
    """
    _refuse_unknown_variables()
    data, given = _read(file), dict(flags or {})

    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            short = InitSettingsSource(settings_cls, _short_forms())
            return init_settings, short, _Environment(settings_cls), InitSettingsSource(settings_cls, data)

    try:
        return Loaded(**given)
    except ValidationError as error:
        lines = [_explain(_as_written(mistake, data), file, given) for mistake in error.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


class _Environment(EnvSettingsSource):
    """Values are JSON where they parse as such, else text, so that a bare name needs no quotes; null is null."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        return _decode(value)

    def __call__(self) -> dict[str, Any]:
        # The base class takes null for a whole section as if nothing had been said, and elsewhere for a word.
        sections = {name: None for name in Settings.model_fields if os.environ.get(_PREFIX + name.upper()) == "null"}
        return {**{key: _nulls(value) for key, value in super().__call__().items()}, **sections}


def _nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nulls(inner) for key, inner in value.items()}
    return None if value == "null" else value


def _decode(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _short_forms() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (section, key) in _SHORT.items():
        if value := os.environ.get(name):
            found.setdefault(section, {})[key] = _decode(value)
    return found


def _refuse_unknown_variables() -> None:
    known = {f"{_PREFIX}{name.upper()}" for name in Settings.model_fields} | set(_SHORT) | _NOT_SETTINGS
    for name in os.environ:
        if not name.upper().startswith(_PREFIX) or _SERVICE_LINKS.fullmatch(name):
            continue
        if name != name.upper():  # some of these pydantic would read, others nobody, keys of the API among them
            raise ConfigError(f"environment variable {name} should be written in capitals: {name.upper()}")
        if name.split("__")[0] not in known:
            raise ConfigError(f"unknown environment variable {name}{_suggest(name, sorted(known))}")


def _read(file: Path) -> dict[str, Any]:
    try:
        data = yaml.load(file.read_text("utf-8"), SettingsYaml)
        json.dumps(data, default=str)  # a value that contains itself has no end
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{file}: is a folder; name its files") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{file}: not valid YAML{where}: {getattr(error, 'problem', None) or 'damaged'}") from error
    except (ValueError, RecursionError):
        raise ConfigError(f"{file}: nested too deeply, or a value that contains itself") from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{file}: should be a mapping of keys such as models, server and speculation")
    return data


def _explain(mistake: ErrorDetails, file: Path, flags: Mapping[str, Any]) -> str:
    """`configs/x.yaml: server.port = 99999: should be less than or equal to 65535`."""
    loc = mistake["loc"]
    key, kind = _dotted(loc), mistake["type"]
    origin = _origin(loc, file, flags, mistake["msg"] if kind == "conflict" else None)
    if kind == "extra_forbidden":
        # A section of verifiers is one of them, so its type is known.
        allowed = sorted(set(_keys(Settings, loc[:-1])) - {"type"})
        return f"{origin}: unknown key {key}{_suggest(str(loc[-1]), allowed)}"
    if kind == "missing":
        return f"{origin}: missing key {key}"
    message = mistake["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind == "tuple_type":
        message = "should be a list"
    if kind == "conflict" or (isinstance(mistake["input"], Mapping | BaseModel) and kind == "value_error"):
        return f"{origin}: {key + ': ' if key else ''}{message}"
    # A key that may be secret is never repeated.
    value = "" if "api_keys" in loc else f" = {_shown(mistake['input'])}"
    hint = ', such as ["sk-..."]' if "api_keys" in loc else ""
    return f"{origin}: {key}{value}: {message}{hint}"


def _as_written(mistake: ErrorDetails, data: Mapping[str, Any]) -> ErrorDetails:
    """Without the [0] of a list where one value was written for a list of one."""
    loc = tuple(part for part in mistake["loc"] if not str(part).startswith("<"))
    for end, part in enumerate(loc):
        variable = os.environ.get(_PREFIX + "__".join(str(one).upper() for one in loc[:end]))
        value: Any = _decode(variable) if variable else data
        for key in () if variable else loc[:end]:
            value = value.get(key) if isinstance(value, Mapping) else None
        if part == 0 and value is not None and not isinstance(value, list):
            return {**mistake, "loc": (*loc[:end], *loc[end + 1 :])}
    return {**mistake, "loc": loc}


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _dotted(loc: Loc) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def _origin(loc: Loc, file: Path, flags: Mapping[str, Any], conflict: str | None) -> str:
    """Which of the three said it: the variable's name, `command line`, or the file's.

    conflict: the message of a mistake between keys; of the variables set there, only those whose key it names count.
    """
    value: Any = flags
    for depth, part in enumerate(loc):
        if not isinstance(value, Mapping) or part not in value:
            break
        value = value[part]
        if depth == len(loc) - 1:
            return "command line"
    for name, target in _SHORT.items():
        if loc[: len(target)] == target and os.environ.get(name):
            return name
    for end in range(len(loc), 0, -1):
        name = _PREFIX + "__".join(str(part).upper() for part in loc[:end])
        if os.environ.get(name):
            return name
    within = sorted(name for name, key in _variables_within(loc) if conflict is None or _names(conflict, key))
    return f"{file} with {', '.join(within)}" if within else str(file)


def _names(message: str, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}\b", message) is not None


def _variables_within(loc: Loc) -> Iterator[tuple[str, str]]:
    """Variables that set something inside `loc`, where the file's values and theirs meet, with the key from there."""
    prefix = _PREFIX + "".join(f"{part}__".upper() for part in loc)
    fields = {f"{_PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in os.environ:
        if name in _SHORT:
            if _SHORT[name][: len(loc)] == loc:
                yield name, ".".join(_SHORT[name][len(loc) :])
        elif name.startswith(prefix) and name.split("__")[0] in fields:
            yield name, name.removeprefix(prefix).replace("__", ".").lower()


def _suggest(word: str, allowed: list[str]) -> str:
    close = get_close_matches(word, allowed, n=1)
    return (f"; did you mean {close[0]}?" if close else ";") + f" Allowed: {', '.join(allowed)}"


def _keys(model: type[BaseModel], loc: Loc) -> Iterator[str]:
    """The keys allowed at `loc`; of every alternative where a value may have several shapes."""
    if not loc:
        yield from model.model_fields
        return
    field = model.model_fields.get(str(loc[0]))
    rest = loc[1:]
    while rest and isinstance(rest[0], int):
        rest = rest[1:]
    for inner in _models(field.annotation) if field else ():
        yield from _keys(inner, rest)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
