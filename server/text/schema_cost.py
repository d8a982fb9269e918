"""Refusals of schemas and grammars that llguidance would compile or follow for seconds, by counting beforehand.

It bounds its own work in most places; these are the others, found by measuring:

- "divisible by n" is an automaton of n states, trailing zeros aside, and two of them on one number multiply
- an object of p optional properties takes p squared steps, and p squared properties once their number is bounded
- a pattern of b bytes takes b squared steps where all of it is optional
- so does a terminal, in time and memory, and a few lines can double it many times over
- a chain of r rules is walked along for every mask
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

MOST_PROPERTIES = 500  # of one object, of which llguidance allows fewer if all are optional
MOST_PROPERTIES_IN_ALL = 5_000
MOST_COUNTED_PROPERTIES = 40
MOST_PATTERN_BYTES = 8 << 10
MOST_PATTERN_BYTES_IN_ALL = 32 << 10
MOST_RULES = 1_000
_MOST_DIVISOR_STATES = 10_000
MOST_TERMINAL_BYTES = 16 << 10
_RULE = re.compile(r"^[ \t]*[?!]?([A-Za-z_]\w*)(?:\.-?\d+)?[ \t]*(?:\[[^\n]*?\])?[ \t]*:", re.MULTILINE)
_TERMINAL = re.compile(r"\b[A-Z_][A-Z0-9_]*\b")
_REGEX = re.compile(r"/(?:\\.|[^/\n\\])+/")
_EMBEDDED = re.compile(r"%json\s*(?=\{)")


class CostError(ValueError):
    """It would take too long; the message is fit for the client."""


def check_schema_cost(schema: Any) -> None:
    """CostError for a JSON schema that is too much, whatever its keywords stand for."""
    states, together, properties, patterns = 0, 1, 0, 0
    for part in _objects(schema):
        divisor = part.get("multipleOf")
        if isinstance(divisor, int | float) and not isinstance(divisor, bool):
            own = _states(divisor)
            states, together = states + own, math.lcm(together, own)
            if max(states // 2, together) > _MOST_DIVISOR_STATES:
                raise CostError(f"multipleOf {divisor} has too many digits to be enforced")
        listed = part.get("properties")
        if isinstance(listed, dict):
            properties += len(listed)
            _check_properties(part, len(listed))
        for pattern in _patterns(part):
            patterns += len(pattern.encode("utf-8", "replace"))
            check_pattern_cost(pattern)
    if properties > MOST_PROPERTIES_IN_ALL:
        raise CostError(f"objects may list at most {MOST_PROPERTIES_IN_ALL} properties in all, got {properties}")
    if patterns > MOST_PATTERN_BYTES_IN_ALL:
        raise CostError(f"patterns may have at most {MOST_PATTERN_BYTES_IN_ALL} bytes in all, got {patterns}")


def check_pattern_cost(pattern: str) -> None:
    """CostError for a regular expression that is too long."""
    if len(pattern.encode("utf-8", "replace")) > MOST_PATTERN_BYTES:
        raise CostError(f"a regular expression may have at most {MOST_PATTERN_BYTES} bytes")


def check_lark_cost(text: str) -> None:
    """CostError for a Lark grammar with too many rules, or with a schema that is too much."""
    starts = [*_RULE.finditer(text)]
    if len(starts) > MOST_RULES:
        raise CostError(f"a grammar may have at most {MOST_RULES} rules")
    ends = [*(start.start() for start in starts[1:]), len(text)]
    _check_terminals({start[1]: text[start.end() : end] for start, end in zip(starts, ends, strict=False)})
    for regex in _REGEX.findall(text):
        check_pattern_cost(regex)
    for found in _EMBEDDED.finditer(text):
        try:
            schema, _end = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue  # no schema, but a piece of text or a mistake, which the compiler will tell
        check_schema_cost(schema)


def _check_terminals(bodies: dict[str, str]) -> None:
    """A terminal is compiled as one regular expression, with all those it names written out, however often."""
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = 0  # one that names itself is refused by the compiler
            body = bodies[name]
            sizes[name] = len(body) + sum(size(inner) for inner in _TERMINAL.findall(body) if inner in bodies)
        return sizes[name]

    for name in bodies:
        if _TERMINAL.fullmatch(name) and size(name) > MOST_TERMINAL_BYTES:
            raise CostError(f"a terminal may have at most {MOST_TERMINAL_BYTES} bytes, with those that it names")


def _check_properties(part: dict[str, Any], count: int) -> None:
    if count > MOST_PROPERTIES:
        raise CostError(f"an object may list at most {MOST_PROPERTIES} properties, got {count}")
    if count > MOST_COUNTED_PROPERTIES and ("minProperties" in part or "maxProperties" in part):
        most = MOST_COUNTED_PROPERTIES
        raise CostError(f"minProperties and maxProperties need an object of at most {most} properties, got {count}")


def _states(divisor: int | float) -> int:
    return int("".join(map(str, Decimal(str(divisor)).normalize().as_tuple().digits))) or 1


def _patterns(part: dict[str, Any]) -> Iterator[str]:
    if isinstance(part.get("pattern"), str):
        yield part["pattern"]
    if isinstance(part.get("patternProperties"), dict):
        yield from part["patternProperties"]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in it, itself too; what merely looks like a schema, as in an enum, is counted as one."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            yield item
            rest += item.values()
        elif isinstance(item, list):
            rest += item
