"""docs/configuration.md tells what the settings are: every key, with its real default and what is really allowed."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from server.datastore_settings import DatastoreSettings
from server.memory import CPU_SHARE, CPU_TOKENS
from server.memory_settings import CorrectionMemorySettings
from server.model_settings import DraftSettings, ExpectedConfig, ModelsSettings, TargetSettings
from server.settings import CostSettings, Settings
from server.settings_loading import ConfigError, SettingsYaml, load_settings
from server.weights.sources import HuggingFaceSource, LocalSource, PypiSource

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
TABLE = re.compile(r"<!-- ([\w:. ]+) -->\n((?:\|.*\n)+)")
MODEL = {"source": "./m.gguf"}
EXPECT = {
    "architecture": "LlamaForCausalLM",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
# What each section cannot do without; those left out need nothing.
LEAST: Mapping[type[BaseModel], dict[str, Any]] = {
    Settings: {"models": {"target": MODEL}},
    ModelsSettings: {"target": MODEL},
    TargetSettings: MODEL,
    DraftSettings: MODEL,
    ExpectedConfig: EXPECT,
    LocalSource: {"path": "./m"},
    HuggingFaceSource: {"huggingface": "org/name"},
    PypiSource: {"pypi": "name==1.0"},
    CostSettings: {"target": {1: 1, 8: 2}},
    CorrectionMemorySettings: {"source": "m.npz"},
    DatastoreSettings: {"files": ["a.txt"]},
}


class Key(NamedTuple):
    """A key as the code has it. section: whether it has keys of its own."""

    model: type[BaseModel]
    name: str
    section: bool


class Row(NamedTuple):
    """A key as the page has it."""

    default: str
    allowed: str


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("SLIPSTREAM_") or name == "XDG_CACHE_HOME":
            monkeypatch.delenv(name)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def keys_of(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, Key]]:
    """Every key at every depth, by its dotted path. A verifier's `type` only repeats its name."""
    for name, field in model.model_fields.items():
        if name == "type":
            continue
        inner = list(models_in(field.annotation))
        yield above + name, Key(model, name, bool(inner))
        for section in inner:
            yield from keys_of(section, f"{above}{name}.")


def from_yaml(text: str) -> Any:
    return yaml.load(text, SettingsYaml)


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def rows_of(text: str) -> list[list[str]]:
    """The cells of a table, its two head rows left out."""
    return [[cell.strip() for cell in line.split(" | ")] for line in map(trimmed, text.splitlines()[2:])]


def trimmed(line: str) -> str:
    return line.removeprefix("|").removesuffix("|")


def table(name: str) -> list[list[str]]:
    (text,) = (text for told, text in TABLE.findall(PAGE) if told == name)
    return rows_of(text)


def rows() -> Iterator[tuple[str, Row]]:
    """Of all tables of keys, by the keys' dotted paths."""
    for title, text in TABLE.findall(PAGE):
        kind, _, sections = title.partition(":")
        for cells in rows_of(text) if kind == "keys" else ():
            assert len(cells) == 4, cells
            assert cells[3].endswith("."), cells
            for section in sections.split() or [""]:
                for name in names_in(cells[0]):
                    yield f"{section}.{name}".removeprefix("."), Row(cells[1], cells[2])


REAL = dict(keys_of(Settings))
TOLD = dict(rows())


def valid(key: Key, *value: Any) -> Any:
    """What becomes of a value of this key, or of none; ValidationError where it is refused."""
    given = {**LEAST.get(key.model, {}), **({key.name: value[0]} if value else {})}
    return getattr(key.model.model_validate(given), key.name)


def test_every_key_has_its_row_and_every_row_its_key() -> None:
    paths = [path for path, _ in rows()]
    assert sorted(paths) == sorted(REAL)


@pytest.mark.parametrize("path", REAL)
def test_defaults_are_the_real_ones(path: str) -> None:
    key, told = REAL[path], TOLD[path].default
    if key.model.model_fields[key.name].is_required():
        assert told == "required"
        return
    value = from_yaml(told.strip("`"))
    assert told == f"`{told.strip('`')}`"
    default = valid(key)
    assert valid(key, value) == default
    assert isinstance(value, bool) == isinstance(default, bool)


NOUNS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true`, `false`"}


def plain(number: float) -> str:
    return str(int(number) if number == int(number) else number)


def bounds(schema: Mapping[str, Any]) -> str:
    """` above 0 to 1`, ` from 256`, ` of 1 to 200 characters`, `, not empty`."""
    said = "".join(
        f" {word} {plain(schema[name])}"
        for name, word in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"))
        if name in schema
    )
    if "maxLength" in schema:
        return f" of {schema['minLength']} to {schema['maxLength']} characters"
    return said + (", not empty" if schema.get("minLength") == 1 or schema.get("minItems") == 1 else "")


def phrase(schema: Mapping[str, Any]) -> str:
    """What a schema allows, null aside, as the page says it."""
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    names = [name for kind in kinds for name in kind.get("enum", [kind["const"]] if "const" in kind else [])]
    if names:
        return ", ".join(f"`{name}`" for name in names)
    (kind,) = kinds
    if kind["type"] == "array":
        items = phrase(kind["items"])
        several = {"text": "texts", "text, not empty": "texts, none of them empty"}
        return f"list of {several.get(items, items)}{bounds(kind)}"
    return NOUNS[kind["type"]] + bounds(kind)


# What only the code that reads a value knows: (more that is allowed, some that is not). What stands between backquotes
# in the cell must be allowed, too.
FREE: Mapping[str, tuple[list[Any], list[Any]]] = {
    "cache_dir": (["./cache"], [3]),
    "models.target.sha256": (["a" * 64, "F" * 64], ["a" * 63, "g" * 64]),
    "models.target.device": (["cuda:99"], ["gpu", "cuda:100", "cuda:01"]),
    "models.target.source.path": (["./folder"], [3]),
    "models.target.source.huggingface": ([], ["name", "org/name/more"]),
    "models.target.source.file": (["a.gguf"], ["a.bin"]),
    "models.target.source.pypi": ([["a==1", "b==2"], "p{1..1000}==1"], ["name", "name>=1.0", "p{1..1001}==1", []]),
    "models.target.expect.architecture": (["Qwen2ForCausalLM"], ["MixtralForCausalLM", "Unheard"]),
    "speculation.costs.target": ([], [{1: 1}, {0: 1, 1: 1}, {1: 0, 2: 1}]),
    "speculation.costs.draft": ([], [{}, {0: 1}, {1: 0}]),
}
SAME = {path.replace(".target.", ".draft.", 1): path for path in FREE if path.startswith("models.target.")}
ALSO = {"kv_cache.tokens": ", or `auto`", "server.api_keys": ", none of them blank"}


@pytest.mark.parametrize("path", [path for path in REAL if path not in FREE and path not in SAME])
def test_what_is_allowed_is_what_the_schema_allows(path: str) -> None:
    key, told = REAL[path], TOLD[path].allowed
    if key.section:
        assert told == "section" or told.startswith("[section](#")
    else:
        schema = key.model.model_json_schema()["properties"][key.name]
        assert told == phrase(schema) + ALSO.get(path, "")


@pytest.mark.parametrize("path", [*FREE, *SAME])
def test_what_no_schema_says_is_told_as_it_is(path: str) -> None:
    key, told = REAL[path], TOLD[path].allowed
    more, refused = FREE[SAME.get(path, path)]
    assert TOLD[SAME.get(path, path)] == TOLD[path]
    for value in [*more, *(from_yaml(name.replace("N", "0")) for name in names_in(told))]:
        valid(key, value)
    for value in refused:
        with pytest.raises(ValidationError):
            valid(key, value)


def test_what_auto_and_its_neighbours_are_is_in_the_text() -> None:
    assert f"`auto` is {CPU_TOKENS} on a CPU" in PAGE
    assert f"within {CPU_SHARE} of the CPU's memory" in PAGE


def merged(below: Mapping[str, Any], above: Any) -> Any:
    if not isinstance(above, dict):
        return above
    return {**below, **{name: merged(below.get(name, {}), value) for name, value in above.items()}}


def loaded(tmp_path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(content))
    return load_settings(file).model_dump()


@pytest.mark.parametrize(("variable", "key", "value"), table("variables"))
def test_a_variable_says_what_its_row_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, key: str, value: str
) -> None:
    base = {"models": {"target": MODEL, "draft": {"source": "./d.gguf"}}, "kv_cache": {"tokens": 4096}}
    name, _, text = variable.strip("`").partition("=")
    path = key.strip("`").split(".")
    assert name in ("_".join(["SLIPSTREAM", *path[-1:]]).upper(), "SLIPSTREAM_" + "__".join(path).upper())
    wanted = from_yaml(value.strip("`"))
    for part in reversed(path):
        wanted = {part: wanted}
    in_file = loaded(tmp_path, merged(base, wanted))
    assert in_file != loaded(tmp_path, base)
    monkeypatch.setenv(name, text)
    assert loaded(tmp_path, base) == in_file


@pytest.mark.parametrize(("why", "example"), table("conflicts"))
def test_keys_that_do_not_agree_are_refused(tmp_path: Path, why: str, example: str) -> None:
    base = {"models": {"target": {"source": "./m"}}}
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, merged(base, from_yaml(example.strip("`"))))
    assert isinstance(caught.value.__cause__, ValidationError), why
    kinds = {mistake["type"] for mistake in caught.value.__cause__.errors()}
    assert kinds == ({"value_error"} if "no source" in why else {"conflict"})


def test_no_conflict_is_left_out() -> None:
    """One row for each place in the code that finds one, and sha256's, which has no such error."""
    raised = sum(path.read_text().count("raise conflict(") for path in (ROOT / "server").rglob("*.py"))
    assert len(table("conflicts")) == raised + 1


def test_the_examples_are_configurations(tmp_path: Path) -> None:
    smallest, sources = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    loaded(tmp_path, from_yaml(smallest))
    kinds = [TargetSettings.model_validate(from_yaml(one)) for one in re.split(r"\n(?=source:)", sources)]
    assert [[type(source) for source in kind.source] for kind in kinds] == [
        [LocalSource],
        [LocalSource],
        [HuggingFaceSource],
        [HuggingFaceSource, PypiSource],
    ]
