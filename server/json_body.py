"""Reading a request's JSON: strictly, quickly, and off the event loop where it is big."""

import asyncio
import json
import math
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from server.errors import ApiError, from_validation, invalid

MOST_LEVELS = 200  # of nested objects and lists; pydantic's parser has no setting for it
_INLINE_BYTES = 32 << 10  # about a millisecond of parsing
Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, schema: type[Body]) -> Body:
    """The body as `schema`. ApiError 400 for malformed JSON and for what the schema does not allow."""
    data = await request.body()
    if len(data) <= _INLINE_BYTES:
        return _parse(data, schema)
    return await asyncio.to_thread(_parse, data, schema)


def _parse(data: bytes, schema: type[Body]) -> Body:
    value = parse_json(data)
    if not isinstance(value, dict):
        raise invalid("The request body must be a JSON object.")
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise from_validation(error) from None


def parse_json(data: bytes) -> Any:
    """Strict JSON: UTF-8, no NaN or Infinity, no number beyond a float's range, no key twice, at most 200 levels
    deep. ApiError 400 otherwise."""
    try:
        # pydantic's parser bounds the depth and refuses lone surrogates, both of which would break things later;
        # Python's tells about duplicate keys, of which the two halves of a request might read different ones.
        from_json(data, allow_inf_nan=False)
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> ApiError:
    return invalid(f"The request body is not valid JSON: {str(error)[:200]}.", code="invalid_json")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has the same key twice")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
