"""POST /v1/chat/completions."""

from starlette.requests import Request
from starlette.responses import Response

from server.errors import invalid, model_not_found
from server.generation_plan import GenerationPlan
from server.json_body import read_body
from server.live_model import LiveModel
from server.openai_api.answer import Envelope, answer, in_thread, planning_pool
from server.openai_api.chat_renderer import ChatRenderer
from server.openai_api.parameters import make_plan
from server.openai_api.schemas import ChatBody
from server.openai_api.tool_plan import around_answer, check_form, with_reading
from server.openai_api.tools import tool_use
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.telemetry.attributes import CHAT


class ChatEndpoint:
    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness

    async def __call__(self, request: Request) -> Response:
        """Create a chat completion, whole or streamed."""
        model = self._readiness.model()
        body = await read_body(request, ChatBody)
        if not self._config.serves(body.model):
            raise model_not_found(body.model, self._config.model)
        streamed = bool(body.stream)
        kind = "chat.completion.chunk" if streamed else "chat.completion"
        envelope = Envelope.new("chatcmpl", kind, self._config.model, model)
        pool = planning_pool(body.wishes, body.tool_choice)
        plan = in_thread(self._plan, body, envelope.id, model, model=model, param="messages", pool=pool)
        renderer = ChatRenderer(envelope, body, model.token_bytes)
        return await answer(request, streamed, plan, model, renderer, self._config.drain_seconds, CHAT)

    def _plan(self, body: ChatBody, answer_id: str, model: LiveModel) -> GenerationPlan:
        limits = self._config.limits
        if len(body.messages) > limits.max_messages:
            most = limits.max_messages
            raise invalid(f"'messages' may have at most {most} entries, got {len(body.messages)}.", "messages")
        if len(body.metadata or {}) > limits.max_metadata:
            raise invalid(f"'metadata' may have at most {limits.max_metadata} entries.", "metadata")
        use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, limits)
        check_form(use, model)
        messages = [message.for_template() for message in body.messages]
        prompt = model.prompts.encode_chat(messages, list(use.shown) if use is not None else None)
        around = around_answer(prompt, use, model) if body.wishes else None
        plan = make_plan(body, [prompt], answer_id, self._config, model, "messages", around)
        return with_reading(plan, use, model)
