"""docs/api.md tells what the server does: its tables name what the OpenAPI document names, with the same numbers."""

import functools
import re
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from core.verifiers.registry import VERIFIERS
from server.app import create_app
from server.openai_api.responses_schemas import ResponsesBody
from server.openai_api.schemas import ChatBody, CompletionBody
from server.serving_config import Limits, ServingConfig
from server.tgi_api.schemas import GenerateParameters, TextGeneration

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
PATHS = {
    "c": "/v1/chat/completions",
    "t": "/v1/completions",
    "r": "/v1/responses",
    "g": "/generate",
    "k": "/tokenize",
    "d": "/detokenize",
    "m": "/chat_tokenize",
}
ALIASES = {"/generate_stream": "/generate", "/": "/generate"}
TABLES = ("shared parameters", "chat and completions", "responses", "tgi", "tokens")
NUMBER = re.compile(r"(?<![\w/])-?\d+")
Row = list[str]


def table(name: str) -> list[Row]:
    """The cells of the table behind `<!-- name -->`, its two head rows left out."""
    lines = PAGE.split(f"<!-- {name} -->\n")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def places_of(row: Row) -> list[str]:
    return row[1].replace("\\", "").split()


@functools.cache
def document() -> dict[str, Any]:
    async def never() -> Any:
        raise AssertionError

    served: dict[str, Any] = create_app(ServingConfig(model="m", api_keys=("k",)), never).openapi()
    return served


def properties_at(path: str) -> dict[str, Any]:
    """A body's properties; TGI's parameters stand among them."""
    content = document()["paths"][path]["post"]["requestBody"]["content"]
    properties: dict[str, Any] = content["application/json"]["schema"]["properties"]
    for branch in properties.get("parameters", {}).get("anyOf", ()):
        properties = properties | branch.get("properties", {})
    return properties


def documented() -> set[tuple[str, str]]:
    """(place, parameter), of all tables."""
    rows = [row for name in TABLES for row in table(name)]
    return {(place, name) for row in rows for name in names_in(row[0]) for place in places_of(row)}


def test_every_parameter_of_every_endpoint_has_its_row() -> None:
    told = documented()
    posts = [path for path, item in document()["paths"].items() if "requestBody" in item.get("post", {})]
    assert {ALIASES.get(path, path) for path in posts} == set(PATHS.values())
    places = {path: place for place, path in PATHS.items()}
    for path in posts:
        place = places[ALIASES.get(path, path)]
        assert {name for name in properties_at(path) if (place, name) not in told} == set(), path


def test_every_row_is_a_parameter_where_it_says_so() -> None:
    for place, name in documented():
        if place.endswith("*"):
            assert name in TextGeneration.model_fields
            assert name not in GenerateParameters.model_fields
        else:
            assert name in properties_at(PATHS[place]), (place, name)


BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties")


def bounds_in(schema: Any) -> set[int]:
    """Every number that bounds a value, however deep."""
    if isinstance(schema, list):
        return set().union(*map(bounds_in, schema))
    if not isinstance(schema, dict):
        return set()
    found = {int(schema[key]) for key in BOUNDS if isinstance(schema.get(key), int | float)}
    found |= {int(schema["exclusiveMaximum"]) - 1} if "exclusiveMaximum" in schema else set()
    found |= {value for value in schema.get("enum", ()) if isinstance(value, int) and not isinstance(value, bool)}
    return found.union(*(bounds_in(value) for key, value in schema.items() if key != "parameters"))


# What a row leaves to another place of the page: verifiers' parameters, the form of messages and tools.
ELSEWHERE = {"verifier", "parameters"}


@pytest.mark.parametrize("name", TABLES)
def test_the_numbers_of_a_row_are_the_schemas(name: str) -> None:
    limits = set(map(int, astuple(Limits())))
    for row in table(name):
        for parameter in set(names_in(row[0])) - ELSEWHERE:
            schemas = [properties_at(PATHS[place])[parameter] for place in places_of(row) if not place.endswith("*")]
            real, told = bounds_in(schemas), {int(number) for number in NUMBER.findall(row[3])}
            assert told <= real | limits, (parameter, told - real - limits)
            missing = real - told - {0, 1}  # "from 0" and "not empty" often go without saying
            assert not missing or parameter in ("tools", "messages", "guided_json"), (parameter, missing)


@pytest.mark.parametrize(
    ("parameter", "default"),
    [
        ("num_draft_tokens", ServingConfig(model="m").default_num_draft_tokens),
        ("verifier", f"`{ServingConfig(model='m').default_verifier}`"),
        ("drafter", f"`{ServingConfig(model='m').default_drafter}`"),
        ("strict_prefix", ServingConfig(model="m").strict_prefix),
        ("max_tokens", f"c: what fits; t: {CompletionBody.DEFAULT_MAX_TOKENS}"),
        ("max_new_tokens", GenerateParameters.DEFAULT_MAX_NEW_TOKENS),
    ],
)
def test_defaults_are_the_real_ones(parameter: str, default: object) -> None:
    [row] = [row for name in TABLES for row in table(name) if parameter in names_in(row[0])]
    assert row[2] == str(default)


def test_every_parameter_of_every_verifier_is_told_with_its_default_and_range() -> None:
    told = {
        (name, parameter): row
        for row in table("verifiers")
        for name in places_of(row)
        for parameter in names_in(row[0])
    }
    real = {
        (name, parameter): schema
        for name, verifier in VERIFIERS.items()
        for parameter, schema in verifier.params.model_json_schema()["properties"].items()
        if parameter != "type"
    }
    assert set(told) == set(real)
    for key, schema in real.items():
        default, allowed = told[key][2].strip("`"), told[key][3]
        assert default == str(schema["default"])
        if "enum" in schema:
            assert names_in(allowed) == schema["enum"]
        else:
            assert ("exclusiveMinimum" in schema) == ("above" in allowed)
            assert {int(number) for number in NUMBER.findall(allowed)} == bounds_in(schema)


def test_limits_are_the_real_ones_in_their_order() -> None:
    assert [int(NUMBER.findall(row[1])[0]) for row in table("limits")] == list(map(int, astuple(Limits())))


def test_what_is_refused_by_name_is_listed_and_nothing_else() -> None:
    told = {(place, name) for row in table("refused") for name in names_in(row[0]) for place in places_of(row)}
    real = {("c", name) for name in ChatBody.REFUSED} | {("t", name) for name in CompletionBody.REFUSED}
    real |= {("r", name) for name in {*ResponsesBody.REFUSED, *ResponsesBody.MOVED}}
    real |= {("g", name) for name in TextGeneration.REFUSED}
    real |= {("k", name) for name in ("chat_template", "chat_template_kwargs", "continue_final_message")}
    assert told == real


def test_error_codes_are_those_in_the_code() -> None:
    told = {name for row in table("errors") for name in names_in(row[2])}
    source = "\n".join(path.read_text() for path in (ROOT / "server").rglob("*.py"))
    real = set(re.findall(r'code ?= ?"(\w+)"', source))
    real |= set(re.findall(r'"((?:invalid|unsupported|missing)_(?:value|parameter|required_parameter|json))"', source))
    assert told == real - {"server_error", "invalid_prompt"}  # a failed response's own codes


def test_links_inside_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
