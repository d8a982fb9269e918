"""JSON schemas as generators write them, made fit for llguidance: what says nothing goes, and what it cannot enforce
goes too where the request does not insist on it."""

import re
from collections.abc import Mapping
from typing import Any

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("const", "enum", "default", "examples", "required")
# What Rust's regular expressions lack: look-around, and references to groups.
_BEYOND = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")


def readable(schema: Any, lenient: bool, dropped: list[str]) -> Any:
    """The schema without `propertyNames` that only says that names are strings, and, if lenient, without patterns
    that cannot be enforced, which are added to `dropped`."""
    if isinstance(schema, list):
        return [readable(item, lenient, dropped) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, Mapping):
            kept[key] = {name: readable(inner, lenient, dropped) for name, inner in value.items()}
        elif key == "pattern" and lenient and isinstance(value, str) and _BEYOND.search(value):
            dropped.append(f"the pattern {value!r}")
        elif key != "propertyNames" or value != {"type": "string"}:
            kept[key] = value if key in _VALUES else readable(value, lenient, dropped)
    return kept
