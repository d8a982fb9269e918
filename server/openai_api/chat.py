"""POST /v1/chat/completions."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.answer_text import AnswerToken
from server.errors import invalid, model_not_found
from server.generation import Delta, Generation, GenerationPlan
from server.json_body import read_body
from server.live_model import LiveModel
from server.openai_api.answer import Envelope, answer, plan_in_thread
from server.openai_api.parameters import make_plan
from server.openai_api.schemas import ChatBody, ChatMessage
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.text.token_bytes import TokenBytes


class ChatEndpoint:
    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness

    async def __call__(self, request: Request) -> Response:
        """Create a chat completion, whole or streamed."""
        model = self._readiness.model()
        body = await read_body(request, ChatBody)
        if not self._config.serves(body.model):
            raise model_not_found(body.model)
        streamed = bool(body.stream)
        kind = "chat.completion.chunk" if streamed else "chat.completion"
        envelope = Envelope.new("chatcmpl", kind, self._config.model, model)
        plan = plan_in_thread(self._plan, body, envelope.id, model, model=model, param="messages")
        renderer = ChatRenderer(envelope, body, model.token_bytes)
        return await answer(request, streamed, plan, model, renderer, self._config.drain_seconds)

    def _plan(self, body: ChatBody, answer_id: str, model: LiveModel) -> GenerationPlan:
        most = self._config.limits.max_messages
        if len(body.messages) > most:
            raise invalid(f"'messages' may have at most {most} entries, got {len(body.messages)}.", "messages")
        if len(body.metadata or {}) > self._config.limits.max_metadata:
            raise invalid(f"'metadata' may have at most {self._config.limits.max_metadata} entries.", "metadata")
        messages = [_for_template(message) for message in body.messages]
        prompt = model.prompts.encode_chat(messages)
        return make_plan(body, [prompt], answer_id, self._config, model, "messages")


def _for_template(message: ChatMessage) -> dict[str, Any]:
    """Only what was given: templates ask whether a key is there."""
    return message.model_dump(exclude_none=True, exclude={"refusal"}) | {"content": message.content}


class ChatRenderer:
    """A generation as chat.completion, or as chat.completion.chunk objects."""

    def __init__(self, envelope: Envelope, body: ChatBody, token_bytes: TokenBytes) -> None:
        self._envelope = envelope
        self._token_bytes = token_bytes
        self._choices = body.n or 1
        self._logprobs = bool(body.logprobs)
        self._provenance = bool(body.return_provenance)
        self._usage = body.include_usage
        self._continuous = body.continuous_usage

    async def whole(self, generation: Generation) -> dict[str, Any]:
        texts = [""] * self._choices
        entries: list[list[dict[str, Any]]] = [[] for _ in texts]
        reasons = [""] * self._choices
        async for delta in generation.deltas():
            texts[delta.index] += delta.text
            entries[delta.index] += [self._entry(token) for token in delta.tokens]
            reasons[delta.index] = delta.finish_reason or ""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": texts[index], "refusal": None},
                "logprobs": self._logprobs_of(entries[index]),
                "finish_reason": reasons[index],
            }
            for index in range(self._choices)
        ]
        return self._envelope.wrap(choices, usage=generation.usage(), speculation=generation.speculation())

    async def chunks(self, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        """Role first, then text, then exactly one chunk with a finish reason for each choice, then usage if asked."""
        for index in range(self._choices):
            yield self._chunk(generation, index, {"role": "assistant", "content": ""})
        async for delta in generation.deltas():
            if delta.text or delta.tokens:
                yield self._chunk(generation, delta.index, {"content": delta.text}, delta)
            if delta.finish_reason is not None:
                chunk = self._chunk(generation, delta.index, {}, finish_reason=delta.finish_reason)
                if generation.finished and not self._usage:
                    chunk["speculation"] = generation.speculation()
                yield chunk
        if self._usage:
            yield self._envelope.wrap([], usage=generation.usage(), speculation=generation.speculation())

    def _chunk(
        self,
        generation: Generation,
        index: int,
        delta: dict[str, Any],
        news: Delta | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        entries = [self._entry(token) for token in news.tokens] if news is not None else []
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs_of(entries) if entries else None,
            "finish_reason": finish_reason,
        }
        more: dict[str, Any] = {}
        if self._continuous:
            more["usage"] = generation.usage()
        elif self._usage:
            more["usage"] = None
        return self._envelope.wrap([choice], **more)

    def _logprobs_of(self, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": entries, "refusal": None} if self._logprobs else None

    def _entry(self, listed: AnswerToken) -> dict[str, Any]:
        token, table = listed.token, self._token_bytes
        logprobs = token.logprobs
        entry = {
            "token": table.label(token.token_id),
            "logprob": logprobs.logprob if logprobs is not None else 0.0,
            "bytes": table.bytes_of(token.token_id),
            "top_logprobs": [
                {"token": table.label(other), "logprob": logprob, "bytes": table.bytes_of(other)}
                for other, logprob in (logprobs.top if logprobs is not None else ())
            ],
        }
        if self._provenance:
            entry["provenance"] = token.provenance.value
        return entry
