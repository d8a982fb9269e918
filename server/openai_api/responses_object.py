"""The Response object: what was asked, repeated as OpenAI repeats it, and what came of it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from server.errors import ApiError
from server.openai_api.responses_schemas import ResponsesBody


@dataclass(frozen=True, slots=True)
class ResponseObject:
    """id, created_at (Unix seconds) and model are the same in every snapshot of an answer."""

    id: str
    created_at: int
    model: str
    body: ResponsesBody

    def in_progress(self) -> dict[str, Any]:
        return self._snapshot("in_progress", [])

    def finished(
        self, output: list[dict[str, Any]], cut_short: bool, usage: Mapping[str, Any], speculation: Mapping[str, Any]
    ) -> dict[str, Any]:
        """cut_short: whether max_output_tokens, or the end of the context, ended the answer."""
        details = {"reason": "max_output_tokens"} if cut_short else None
        return self._snapshot(
            "incomplete" if cut_short else "completed",
            output,
            completed_at=None if cut_short else int(time.time()),
            incomplete_details=details,
            usage=_usage(usage),
            speculation=speculation,
        )

    def failed(self, output: list[dict[str, Any]], error: ApiError) -> dict[str, Any]:
        # OpenAI's document has a list of codes, which knows no finer difference than whose fault it was.
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        return self._snapshot("failed", output, error={"code": code, "message": error.message})

    def _snapshot(self, status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": output,
            **self._asked(),
            **more,
        }

    def _asked(self) -> dict[str, Any]:
        body = self.body
        asked: dict[str, Any] = {
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": body.text_format.model_dump(by_alias=True, exclude_none=True), "verbosity": "medium"},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
        }
        # In OpenAI's document `user` is a string or absent, never null.
        return asked if body.user is None else asked | {"user": body.user}


def _usage(counted: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of server.report in the names of this endpoint."""
    prompt, completion = (counted.get(f"{part}_tokens_details", {}) for part in ("prompt", "completion"))
    return {
        "input_tokens": counted["prompt_tokens"],
        # Nobody pays for writing into the prefix cache here.
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens", 0), "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens", 0)},
        "total_tokens": counted["total_tokens"],
    }
