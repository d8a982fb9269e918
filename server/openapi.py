"""The OpenAPI document's part of a route: what it takes, with this server's limits, and every shape it answers with.

Handlers parse bodies themselves, more strictly than the framework would, so FastAPI must be told what they take.
"""

from typing import Any

from pydantic import BaseModel

from core.verifiers.registry import VERIFIERS
from server.json_body import MOST_LEVELS
from server.serving_config import ServingConfig


class ErrorObject(BaseModel):
    """message: a sentence for people. param: the request's field, if one is to blame. code: for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """What every answer other than 200 looks like."""

    error: ErrorObject


_ERRORS = {
    400: "The request cannot be served as it stands; `param` names the field.",
    401: "A missing or wrong API key.",
    404: "No such model, or nothing behind this URL.",
    405: "This URL takes another method.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    429: "Too many requests are waiting; `Retry-After` says when to come back.",
    500: "Something went wrong inside; the log knows more.",
    503: "Loading or shutting down; `Retry-After` says when to come back.",
}


_BEFORE_ROUTES = (401, 404, 405, 408, 413)  # mostly answered before a route is reached, in one shape for all


def answers(
    model: type[BaseModel] | None = None,
    streamed: type[BaseModel] | None = None,
    ending: str = ", then [DONE]",
    error: type[BaseModel] = ErrorResponse,
) -> dict[int | str, Any]:
    """FastAPI's `responses`: every error, and 200 as `model`, or as server-sent events that each hold a `streamed`.

    ending: what follows a stream's last event, in words. error: the shape of the dialect's own errors.
    """
    responses: dict[int | str, Any] = {
        status: {"model": ErrorResponse if status in _BEFORE_ROUTES else error, "description": text}
        for status, text in _ERRORS.items()
    }
    if model is not None:
        responses[200] = {"model": model, "description": "The answer."}
    if streamed is not None:
        # OpenAPI 3.1 has no word for a stream's items, so the schema is of one event.
        data = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": _inlined(streamed.model_json_schema()),
        }
        event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
        responses.setdefault(200, {})["content"] = {"text/event-stream": {"schema": event}}
        responses[200]["description"] = f"The answer; with `stream`, server-sent events whose data is JSON{ending}."
    return responses


def takes(body: type[BaseModel], config: ServingConfig) -> dict[str, Any]:
    """FastAPI's `openapi_extra`: the JSON body, with the numbers and names that this server's configuration sets."""
    schema = _inlined(body.model_json_schema())
    for place in (schema, *_branches(schema["properties"].get("parameters", {}))):  # where TGI has them
        _limit(place.get("properties", {}), config)
        _name(place.get("properties", {}), config)
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "description": _sizes(config), "content": content}}


def _sizes(config: ServingConfig) -> str:
    """The limits that JSON Schema has no word for."""
    limits = config.limits
    return (
        f"At most {limits.max_body_bytes} bytes, nested at most {MOST_LEVELS} levels deep. A JSON schema, regular "
        f"expression or grammar, or all choices together: at most {limits.max_constraint_bytes} bytes; a schema is "
        f"nested at most {limits.max_schema_depth} levels deep. All tools together: at most {limits.max_tools_bytes} "
        f"bytes as JSON. Prompts times n (or best_of): at most {limits.max_sequences}."
    )


def secure(document: dict[str, Any]) -> None:
    """Say in the document that requests need a key; those to /health do not."""
    document["components"]["securitySchemes"] = {"api_key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"api_key": []}]
    for operation in document["paths"].get("/health", {}).values():
        operation["security"] = []


def at(name: str) -> dict[str, Any]:
    """FastAPI's `openapi_extra` of a route with this part in its path, which handlers take from the request."""
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]}


def _limit(properties: dict[str, Any], config: ServingConfig) -> None:
    """Write the limits into the properties they bound; null, which means "not given", stays allowed."""
    limits = config.limits
    text = {"maxLength": limits.max_constraint_bytes}
    bounds: dict[str, dict[str, Any]] = {
        "n": {"maximum": limits.max_n},
        "best_of": {"maximum": limits.max_n},
        "num_draft_tokens": {"maximum": config.max_num_draft_tokens},
        "logit_bias": {"maxProperties": limits.max_logit_bias},
        "metadata": {"maxProperties": limits.max_metadata},
        "stop_token_ids": {"maxItems": limits.max_stop_token_ids},
        "messages": {"maxItems": limits.max_messages},
        "input": {"maxItems": limits.max_messages},
        "stop": {"maxItems": limits.max_stop},
        "prompt": {"maxItems": limits.max_prompts},
        "tools": {"maxItems": limits.max_tools},
        **{name: {"maxItems": limits.max_choices} for name in ("choice", "guided_choice")},
        **{f"{prefix}{name}": text for prefix in ("", "guided_") for name in ("regex", "grammar")},
    }
    kinds = {"maximum": "integer", "maxProperties": "object", "maxItems": "array", "maxLength": "string"}
    for name, bound in bounds.items():
        for keyword, number in bound.items():
            for branch in _branches(properties.get(name, {})):
                if branch.get("type") == kinds[keyword] and branch.get("items") != _TOKEN_ID:
                    branch[keyword] = number
    for branch in _branches(properties.get("structured_outputs", {})):
        if "properties" in branch:
            _limit(branch["properties"], config)
    for branch in _branches(properties.get("stop", {})):
        stop = branch.get("items", branch)
        if stop.get("type") == "string":
            stop.update(minLength=1, maxLength=limits.max_stop_chars)


_TOKEN_ID = {"type": "integer", "minimum": 0}  # a list of these is one prompt, however long


def _name(properties: dict[str, Any], config: ServingConfig) -> None:
    """Write down the names that requests may use here: of models, drafters and verifiers with their parameters; and
    what stands for those that a request does not give."""
    for branch in _branches(properties.get("model", {})):
        if branch.get("type") == "string":
            branch["enum"] = [config.model, *config.aliases]
    for branch in _branches(properties.get("drafter", {})):
        if branch.get("type") == "string":
            branch["enum"] = ["auto", *config.allowed_drafters]
    if "verifier" in properties:
        objects = [_verifier_object(name, config) for name in config.allowed_verifiers]
        names = {"type": "string", "enum": list(config.allowed_verifiers)}
        properties["verifier"]["anyOf"] = [names, *objects, {"type": "null"}]
    defaults = {
        "verifier": config.default_verifier,
        "drafter": config.default_drafter,
        "num_draft_tokens": config.default_num_draft_tokens,
        "draft_length": config.default_draft_length,
        "strict_prefix": config.strict_prefix,
    }
    for name, default in defaults.items():
        if name in properties:
            properties[name]["default"] = default


def _verifier_object(name: str, config: ServingConfig) -> dict[str, Any]:
    schema = VERIFIERS[name].params.model_json_schema() | {"required": ["type"]}
    configured = config.verifier_defaults.get(name)
    for field, value in configured.model_dump().items() if configured is not None else ():
        schema["properties"][field]["default"] = value
    return schema


def _branches(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A property's alternatives, nested ones too."""
    inner = schema.get("anyOf", [])
    return [schema, *(branch for alternative in inner for branch in _branches(alternative))]


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inline(schema, definitions)
    return inlined


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    """The schema with its references replaced by what they name (none of them is recursive)."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    return {key: _inline(value, definitions) for key, value in node.items()}
