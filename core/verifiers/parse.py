"""From what a request says about its verifier to resolved parameters, or to an error it can act on.

    None                                    the server's default verifier, with the server's parameters
    "fly"                                   the server's parameters for fly
    {"type": "fly", "window": 4}            the same with window 4

Types are taken strictly: "6", true and 6.0 are no integers, NaN is no number.
"""

from collections.abc import Collection, Mapping
from typing import Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from core.verifiers.params import FlyParams, HybridParams, VerifierParams
from core.verifiers.registry import VERIFIERS

_SHOWN = 60  # characters of a client's value that an error repeats


class VerifierError(ValueError):
    """A request's verifier is wrong. param: the field at fault, such as "verifier.window"."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def parse_verifier(
    value: object,
    defaults: Mapping[str, VerifierParams],
    default: str = "strict",
    allowed: Collection[str] = tuple(VERIFIERS),
) -> VerifierParams:
    """Resolve a request's `verifier` field: None, a name, or an object with `type` and parameters.

    defaults: the server's parameters per type; a type it lacks has those of its class. default: the
    name that None stands for. allowed: the names a request may use, `default` included. VerifierError
    for anything else; its message lists what is allowed.
    """
    if isinstance(value, Mapping):
        if "type" not in value:
            raise VerifierError(f"verifier.type is missing; allowed: {_list(allowed)}", "verifier.type")
        name, given, param = value["type"], value, "verifier.type"
    else:
        name, given, param = default if value is None else value, {}, "verifier"
    if not isinstance(name, str):
        expected = "a name" if given else "a name or an object with a type"
        raise VerifierError(f"{param} must be {expected}, got {_show(name)}; allowed: {_list(allowed)}", param)
    if name not in allowed or name not in VERIFIERS:
        reason = "is not allowed on this server" if name in VERIFIERS else "is unknown"
        raise VerifierError(f"verifier {_show(name)} {reason}; allowed: {_list(allowed)}", param)
    configured = defaults[name] if name in defaults else VERIFIERS[name].params()
    return _override(configured, given)


def check_window(params: VerifierParams, num_draft_tokens: int, from_request: bool) -> str | None:
    """Whether FLy's window fits into a block of K = num_draft_tokens drafts; None if it does.

    With K <= W no draft has W others behind it, so fly equals strict, and hybrid equals csd. Either
    way the verifier is not the one that was named, so both are treated alike: VerifierError if the
    request itself set W or K (from_request), otherwise a sentence to show in its report.
    """
    if not isinstance(params, FlyParams | HybridParams) or num_draft_tokens > params.window:
        return None
    effect = "fly equals strict" if isinstance(params, FlyParams) else "hybrid loosens nothing that csd does not"
    problem = (
        f"a window of {params.window} needs blocks of at least {params.window + 1} draft tokens, "
        f"but num_draft_tokens is {num_draft_tokens}: {effect}"
    )
    if from_request:
        raise VerifierError(f"verifier.window must be smaller than num_draft_tokens: {problem}", "verifier.window")
    return f"{problem[0].upper()}{problem[1:]}."


def _override(configured: VerifierParams, given: Mapping[object, object]) -> VerifierParams:
    """The configured parameters with the given ones in place of theirs, validated."""
    fields = type(configured).model_fields
    for key in given:
        if key not in fields:
            shown = _show(key)
            param = f"verifier.{shown[1:-1]}" if isinstance(key, str) else "verifier"
            raise VerifierError(
                f"verifier {configured.type!r} has no parameter {shown}; allowed: {_list(fields)}", param
            )
    try:
        return type(configured).model_validate({**configured.model_dump(), **given}, strict=True)
    except ValidationError as error:
        wrong = str(error.errors(include_url=False, include_context=False)[0]["loc"][0])
    # Outside the handler, so that pydantic's own wording does not trail along as the cause.
    param = f"verifier.{wrong}"
    raise VerifierError(f"{param} must be {_describe(fields[wrong])}, got {_show(given[wrong])}", param)


def _describe(field: FieldInfo) -> str:
    """A field's allowed values in words: "an integer from 0 to 64", "a number above 0 and at most 1"."""
    if get_origin(field.annotation) is Literal:
        return f"one of: {_list(get_args(field.annotation))}"
    kind = "an integer" if field.annotation is int else "a number"
    bounds = []
    for constraint in field.metadata:
        for attribute, words in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most")):
            if hasattr(constraint, attribute):
                bound = getattr(constraint, attribute)
                bounds.append(f"{words} {int(bound) if bound == int(bound) else bound}")
    return " ".join([kind, " and ".join(bounds)]).strip()


def _list(names: Collection[str]) -> str:
    return ", ".join(names)


def _show(value: object) -> str:
    """A client's value as JSON-like text of bounded length; big containers and integers are only named."""
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_SHOWN else "an integer of more than 60 digits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
