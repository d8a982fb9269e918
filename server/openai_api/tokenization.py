"""POST /tokenize and /detokenize, GET /tokenizer_info and /version, in vLLM's shapes.

Evaluation harnesses use them in place of a tokenizer of their own.
"""

import asyncio
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from server.errors import invalid, model_not_found, unsupported
from server.json_body import read_body
from server.live_model import LiveModel
from server.openai_api.answer import in_thread
from server.openai_api.fields import TokenId
from server.openai_api.messages import ChatMessage
from server.openai_api.tools import Tool, tool_use
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.streaming import WholeAnswer
from server.version import VERSION
from server.workers import TOKENIZING


class TokenizeBody(BaseModel):
    """A text, or messages for the model's chat template."""

    model_config = ConfigDict(strict=True, extra="allow")
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = Field(None, description="true for a prompt; a chat template writes its own")
    add_generation_prompt: bool | None = Field(None, description="end ready for the assistant's turn; true")
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise invalid("Give either 'prompt' or 'messages'.", "prompt")
        if self.messages is not None and self.add_special_tokens:
            raise unsupported("add_special_tokens", "'add_special_tokens' with 'messages' is")
        for name in ("chat_template", "chat_template_kwargs", "continue_final_message"):
            if (self.model_extra or {}).get(name):
                raise unsupported(name, f"'{name}' is")
        return self


class DetokenizeBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    model: str | None = None
    tokens: list[TokenId]


class TokenizationEndpoints:
    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness

    async def tokenize(self, request: Request) -> Response:
        """The token ids of a text or of messages."""
        model = self._readiness.model()
        body = await read_body(request, TokenizeBody)
        self._check_model(body.model)
        param = "prompt" if body.messages is None else "messages"
        answer = await in_thread(self._tokenize, body, model, model=model, param=param, pool=TOKENIZING)
        return await asyncio.to_thread(WholeAnswer, answer)

    def _tokenize(self, body: TokenizeBody, model: LiveModel) -> dict[str, Any]:
        if body.messages is None:
            text, most = body.prompt or "", model.prompts.longest_text
            if len(text) > most:
                raise invalid(f"'prompt' may have at most {most} characters here, got {len(text)}.", "prompt")
            token_ids = model.prompts.tokenize(text, body.add_special_tokens is not False)
        else:
            use = tool_use(body.tools, None, None, self._config.limits)
            token_ids = model.prompts.encode_chat(
                [message.for_template() for message in body.messages],
                list(use.shown) if use is not None else None,
                body.add_generation_prompt is not False,
            )
        return {
            "count": len(token_ids),
            "max_model_len": model.max_context,
            "tokens": token_ids,
            "token_strs": [model.token_bytes.name(token) for token in token_ids] if body.return_token_strs else None,
        }

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids, control tokens by their names."""
        model = self._readiness.model()
        body = await read_body(request, DetokenizeBody)
        self._check_model(body.model)
        answer = await TOKENIZING.run(self._detokenize, body, model)
        return await asyncio.to_thread(WholeAnswer, answer)

    def _detokenize(self, body: DetokenizeBody, model: LiveModel) -> dict[str, Any]:
        if max(body.tokens, default=0) >= model.vocab_size:
            raise invalid(f"'tokens' must be token ids from 0 to {model.vocab_size - 1}.", "tokens")
        return {"prompt": model.prompts.detokenize(body.tokens)}

    async def tokenizer_info(self, _request: Request) -> Response:
        """The names of the tokenizer's special tokens, and the chat template."""
        model = self._readiness.model()
        return JSONResponse({**model.prompts.special_tokens(), "model_max_length": model.max_context})

    async def version(self, _request: Request) -> Response:
        """The version of this server."""
        return JSONResponse({"version": VERSION})

    def _check_model(self, name: str | None) -> None:
        if name is not None and not self._config.serves(name):
            raise model_not_found(name, self._config.model)
