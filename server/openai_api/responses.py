"""POST /v1/responses, and what there is to say about stored answers: there are none."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.answer_text import AnswerToken
from server.errors import ApiError, internal, invalid, model_not_found, shorten
from server.generation import Delta, Generation, GenerationPlan
from server.json_body import read_body
from server.live_model import LiveModel
from server.openai_api.answer import answer, plan_in_thread
from server.openai_api.parameters import make_plan
from server.openai_api.responses_items import to_messages
from server.openai_api.responses_object import ResponseObject
from server.openai_api.responses_output import Event, OutputWriter
from server.openai_api.responses_schemas import ResponsesBody
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.streaming import Chunks, data_line, long_data_line
from server.text.token_bytes import TokenBytes

logger = logging.getLogger(__name__)


class ResponsesEndpoint:
    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness

    async def create(self, request: Request) -> Response:
        """Create a response, whole or streamed. It is not stored."""
        model = self._readiness.model()
        body = await read_body(request, ResponsesBody)
        if not self._config.serves(body.model):
            raise model_not_found(body.model)
        response = ResponseObject(f"resp_{uuid.uuid4().hex}", int(time.time()), self._config.model, body)
        plan = plan_in_thread(self._plan, body, response.id, model, model=model, param="input")
        renderer = ResponseRenderer(response, body, model.token_bytes)
        return await answer(request, bool(body.stream), plan, model, renderer, self._config.drain_seconds, named_events)

    async def absent(self, request: Request) -> Response:
        """Answers are not stored, so none can be found, deleted or cancelled."""
        name = shorten(repr(str(request.path_params["response_id"])), 80)
        message = f"Response with id {name} not found: this server stores no responses."
        raise ApiError(404, message, param="response_id", code="response_not_found")

    def _plan(self, body: ResponsesBody, answer_id: str, model: LiveModel) -> GenerationPlan:
        limits = self._config.limits
        if isinstance(body.input, list) and len(body.input) > limits.max_messages:
            raise invalid(f"'input' may have at most {limits.max_messages} items, got {len(body.input)}.", "input")
        if len(body.metadata or {}) > limits.max_metadata:
            raise invalid(f"'metadata' may have at most {limits.max_metadata} entries.", "metadata")
        prompt = model.prompts.encode_chat(to_messages(body.input, body.instructions))
        return make_plan(body, [prompt], answer_id, self._config, model, "input")


async def named_events(chunks: Chunks) -> AsyncIterator[bytes]:
    """Events named by their type. There is no [DONE]: the last one says how the answer ended."""
    async for chunk in chunks:
        kind: str = chunk["type"]
        # All but deltas may hold the whole answer, with its log-probabilities: too much for the event loop.
        data = data_line(chunk) if kind.endswith(".delta") else await asyncio.to_thread(long_data_line, chunk)
        yield f"event: {kind}\n".encode() + data + b"\n"


class ResponseRenderer:
    """A generation as a Response object, or as the events of its making."""

    def __init__(self, response: ResponseObject, body: ResponsesBody, token_bytes: TokenBytes) -> None:
        self._response = response
        self._token_bytes = token_bytes
        self._logprobs = body.alternatives is not None
        self._provenance = bool(body.return_provenance)
        self._writer = OutputWriter()

    async def whole(self, generation: Generation) -> dict[str, Any]:
        response: dict[str, Any] = {}
        async for event in self._events(generation):
            response = event.get("response", response)
        return response

    async def chunks(self, generation: Generation) -> AsyncIterator[Event]:
        """Numbered events. Whatever goes wrong after the first of them is the last one's `error`."""
        number = 0
        async for event in self._told(generation):
            yield {**event, "sequence_number": number}
            number += 1

    async def _told(self, generation: Generation) -> AsyncIterator[Event]:
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._response.in_progress()}
        try:
            async for event in self._events(generation):
                yield event
        except ApiError as error:
            yield self._failed(error)
        except Exception:
            logger.exception("a stream failed")
            yield self._failed(internal())

    def _failed(self, error: ApiError) -> Event:
        return {"type": "response.failed", "response": self._response.failed(self._writer.abandon(), error)}

    async def _events(self, generation: Generation) -> AsyncIterator[Event]:
        """The output's events, then the one that holds the finished answer."""
        cut_short = False
        async for delta in generation.deltas():
            for event in self._grow(delta):
                yield event
            cut_short = delta.finish_reason == "length"
        for event in self._writer.finish(cut_short):
            yield event
        response = self._response.finished(self._writer.items, cut_short, generation.usage(), generation.speculation())
        yield {"type": f"response.{response['status']}", "response": response}

    def _grow(self, delta: Delta) -> Iterator[Event]:
        logprobs = [self._entry(token) for token in delta.tokens] if self._logprobs else []
        if delta.text or logprobs:
            yield from self._writer.say(delta.text, logprobs)

    def _entry(self, listed: AnswerToken) -> dict[str, Any]:
        token, table = listed.token, self._token_bytes
        found = token.logprobs
        entry = {
            "token": table.label(token.token_id),
            "logprob": found.logprob if found is not None else 0.0,
            "bytes": table.bytes_of(token.token_id) or [],
            "top_logprobs": [
                {"token": table.label(other), "logprob": logprob, "bytes": table.bytes_of(other) or []}
                for other, logprob in (found.top if found is not None else ())
            ],
        }
        return entry | {"provenance": token.provenance.value} if self._provenance else entry
