"""A conversation's messages, as clients send them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from server.openai_api.fields import Content


class CalledFunction(BaseModel):
    """arguments: JSON, as the model wrote it."""

    model_config = ConfigDict(strict=True, extra="ignore")
    name: str
    arguments: str


class ToolCall(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """One turn. Content may be null only in an assistant's: then there was none. reasoning_content (or reasoning,
    as others call it): what the assistant thought, for templates that show it again."""

    model_config = ConfigDict(strict=True, extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> "ChatMessage":
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role '{self.role}' needs content")
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("a message of role 'tool' needs the tool_call_id of the call that it answers")
        return self

    def for_template(self) -> dict[str, Any]:
        """Only what was given and belongs to its role: templates ask whether a key is there."""
        # Templates know null as what stands beside calls; a turn without either has no words.
        silent = self.content is None and not self.tool_calls
        known: dict[str, Any] = {"role": self.role, "content": "" if silent else self.content}
        if self.name is not None:
            known["name"] = self.name
        if self.role == "tool":
            known["tool_call_id"] = self.tool_call_id
        if self.role == "assistant":
            if self.tool_calls:
                known["tool_calls"] = [call.model_dump() for call in self.tool_calls]
            if (thoughts := self.reasoning_content or self.reasoning) is not None:
                known["reasoning_content"] = thoughts
        return known
