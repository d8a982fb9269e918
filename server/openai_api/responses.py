"""POST /v1/responses, and what there is to say about stored answers: there are none."""

import time
import uuid

from starlette.requests import Request
from starlette.responses import Response

from server.errors import ApiError, invalid, model_not_found, shorten
from server.generation_plan import GenerationPlan
from server.json_body import read_body
from server.live_model import LiveModel
from server.openai_api.answer import answer, in_thread, planning_pool
from server.openai_api.parameters import make_plan
from server.openai_api.responses_items import to_messages
from server.openai_api.responses_object import ResponseObject
from server.openai_api.responses_renderer import ResponseRenderer, named_events
from server.openai_api.responses_schemas import ResponsesBody
from server.openai_api.tool_plan import around_answer, check_form, with_reading
from server.openai_api.tools import tool_use
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.telemetry.attributes import CHAT


class ResponsesEndpoint:
    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness

    async def create(self, request: Request) -> Response:
        """Create a response, whole or streamed. It is not stored."""
        model = self._readiness.model()
        body = await read_body(request, ResponsesBody)
        if not self._config.serves(body.model):
            raise model_not_found(body.model, self._config.model)
        response = ResponseObject(f"resp_{uuid.uuid4().hex}", int(time.time()), self._config.model, body)
        pool = planning_pool(body.wishes, body.tool_choice)
        plan = in_thread(self._plan, body, response.id, model, model=model, param="input", pool=pool)
        renderer = ResponseRenderer(response, body, model.token_bytes)
        drain = self._config.drain_seconds
        return await answer(request, bool(body.stream), plan, model, renderer, drain, CHAT, named_events)

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
        tools = [tool.as_tool() for tool in body.tools or ()]
        use = tool_use(tools, body.nested_tool_choice, body.parallel_tool_calls, limits, nested=False)
        check_form(use, model)
        messages = to_messages(body.input, body.instructions)
        prompt = model.prompts.encode_chat(messages, list(use.shown) if use is not None else None)
        around = around_answer(prompt, use, model) if body.wishes else None
        plan = make_plan(body, [prompt], answer_id, self._config, model, "input", around)
        return with_reading(plan, use, model)
