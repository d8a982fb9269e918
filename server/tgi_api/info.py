"""GET /info and POST /chat_tokenize."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from server.json_body import read_body
from server.live_model import LiveModel
from server.openai_api.answer import in_thread
from server.openai_api.tools import tool_use
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.streaming import WholeAnswer
from server.text.detokenizer import Detokenizer
from server.text.token_bytes import TokenBytes
from server.tgi_api.errors import tgi_errors
from server.tgi_api.schemas import ChatTokenizeBody
from server.version import VERSION
from server.workers import TOKENIZING


class InfoEndpoints:
    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness

    @tgi_errors
    async def info(self, request: Request) -> Response:
        """The model and the limits of requests to it."""
        model, limits = self._readiness.model(), self._config.limits
        return JSONResponse(
            {
                "model_id": self._config.model,
                "model_sha": None,
                "model_pipeline_tag": "text-generation",
                "max_concurrent_requests": model.engine.capacity,
                "max_best_of": limits.max_n,
                "max_stop_sequences": limits.max_stop,
                "max_input_tokens": model.max_context - 1,
                "max_total_tokens": model.max_context,
                "max_client_batch_size": 1,
                "router": "slipstream",
                "version": VERSION,
                "sha": None,
                "docker_label": None,
            }
        )

    @tgi_errors
    async def chat_tokenize(self, request: Request) -> Response:
        """Messages as the model will read them: rendered by its template, and the tokens of that."""
        model = self._readiness.model()
        body = await read_body(request, ChatTokenizeBody)
        answer = await in_thread(self._tokenize, body, model, model=model, param="messages", pool=TOKENIZING)
        return await asyncio.to_thread(WholeAnswer, answer)

    def _tokenize(self, body: ChatTokenizeBody, model: LiveModel) -> dict[str, Any]:
        use = tool_use(body.tools, body.tool_choice, None, self._config.limits)
        messages = [message.for_template() for message in body.messages]
        token_ids = model.prompts.encode_chat(messages, list(use.shown) if use is not None else None)
        tokens = spelled_out(token_ids, model.token_bytes)
        return {"tokenize_response": tokens, "templated_text": "".join(token["text"] for token in tokens)}


def spelled_out(token_ids: list[int], table: TokenBytes) -> list[dict[str, Any]]:
    """Each token with its part of the text, control tokens by their names, and where that stands, in characters."""
    decoder, tokens, start = Detokenizer(), [], 0
    for token_id in token_ids:
        text = decoder.feed(table[token_id]) if table[token_id] else table.name(token_id)
        tokens.append({"id": token_id, "text": text, "start": start, "stop": start + len(text)})
        start += len(text)
    return tokens
