"""What a chat template does not do for tools.

For models whose template knows nothing of them they are written out in words: the system message tells what there is
and how to call it, in the form of Hermes; calls and results of earlier turns become the text that the model would
have written and read.
"""

import hashlib
import json
from typing import Any

Message = dict[str, Any]

_INSTRUCTIONS = """# Tools

You can call functions. These are their signatures, one JSON object a line:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments as JSON between tags, one pair of tags for each call:
<tool_call>
{{"name": "<name of the function>", "arguments": {{"<name of a parameter>": "<value>"}}}}
</tool_call>"""


def with_tools(messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    """The messages with the tools in their system message; one is put first if there is none."""
    signatures = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _INSTRUCTIONS.format(tools=signatures)
    first = messages[0]
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{first['content']}\n\n{text}".lstrip()}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_calls_as_text(messages: list[Message]) -> list[Message]:
    """The messages with calls as an assistant's text, and neighbouring results as one message of the user."""
    result: list[Message] = []
    results: Message | None = None
    for message in messages:
        if message["role"] != "tool":
            results = None
            result.append(_as_text(message) if message.get("tool_calls") else message)
            continue
        if results is None:
            results = {"role": "user", "content": ""}
            result.append(results)
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        results["content"] = f"{results['content']}\n{text}".lstrip()
    return result


def with_short_ids(messages: list[Message]) -> list[Message]:
    """The messages with call ids of nine letters and digits, which Mistral's templates insist on; other servers' ids
    are replaced, equal ones by equal ones."""
    return [_with_short_ids(message) for message in messages]


def _with_short_ids(message: Message) -> Message:
    changed = dict(message)
    if message.get("tool_calls"):
        changed["tool_calls"] = [{**call, "id": _short(str(call.get("id", "")))} for call in message["tool_calls"]]
    if message.get("tool_call_id"):
        changed["tool_call_id"] = _short(message["tool_call_id"])
    return changed


def _short(call_id: str) -> str:
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _as_text(message: Message) -> Message:
    calls = [_call_as_text(call["function"]) for call in message["tool_calls"]]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, [message["content"], *calls]))}


def _call_as_text(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {shown}}}\n</tool_call>'
