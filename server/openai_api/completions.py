"""POST /v1/completions: raw prompts, as text or as token ids, one or several."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.answer_text import AnswerToken
from server.errors import invalid, model_not_found
from server.generation import Generation, GenerationPlan
from server.json_body import read_body
from server.live_model import LiveModel
from server.openai_api.answer import Envelope, answer, plan_in_thread
from server.openai_api.parameters import make_plan
from server.openai_api.schemas import CompletionBody
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.text.detokenizer import Detokenizer
from server.text.token_bytes import TokenBytes


class CompletionEndpoint:
    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness

    async def __call__(self, request: Request) -> Response:
        """Create a completion, whole or streamed."""
        model = self._readiness.model()
        body = await read_body(request, CompletionBody)
        if not self._config.serves(body.model):
            raise model_not_found(body.model)
        most = self._config.limits.max_prompts
        if len(body.prompt) > most:
            raise invalid(f"'prompt' may hold at most {most} prompts, got {len(body.prompt)}.", "prompt")
        envelope = Envelope.new("cmpl", "text_completion", self._config.model, model)
        plan = plan_in_thread(self._plan, body, envelope.id, model, model=model, param="prompt")
        renderer = CompletionRenderer(envelope, body, model.token_bytes)
        return await answer(request, bool(body.stream), plan, model, renderer, self._config.drain_seconds)

    def _plan(self, body: CompletionBody, answer_id: str, model: LiveModel) -> GenerationPlan:
        return make_plan(body, _encode_all(body.prompt, model), answer_id, self._config, model, "prompt")


def _encode_all(prompts: list[Any], model: LiveModel) -> list[list[int]]:
    """Token ids of every prompt. ValueError for an empty one or for ids that the model does not have."""
    encoded: list[list[int]] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            prompt = model.prompts.encode_text(prompt)
            if not prompt:
                raise ValueError("'prompt' must not be empty: this model needs a token to start from")
        elif max(prompt) >= model.vocab_size:
            raise ValueError(
                f"'prompt' holds a token id beyond the vocabulary; ids go from 0 to {model.vocab_size - 1}"
            )
        else:
            model.prompts.check_length(prompt)
        encoded.append(prompt)
    return encoded


class CompletionRenderer:
    """A generation as text_completion objects; a stream's chunks have the same shape."""

    def __init__(self, envelope: Envelope, body: CompletionBody, token_bytes: TokenBytes) -> None:
        self._envelope = envelope
        self._body = body
        self._token_bytes = token_bytes
        self._choices = len(body.prompt) * (body.n or 1)
        self._logprobs = body.logprobs is not None
        self._provenance = bool(body.return_provenance)
        self._usage = body.include_usage
        self._continuous = body.continuous_usage

    def _echoes(self) -> list[str]:
        """What each choice's text begins with. Only once the plan stands: until then `n` and the prompt's token
        ids are whatever the client wrote."""
        echoes = [self._echo(prompt) if self._body.echo else "" for prompt in self._body.prompt]
        return [echo for echo in echoes for _ in range(self._body.n or 1)]

    def _echo(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        text = Detokenizer()
        return text.feed(b"".join(self._token_bytes[token] for token in prompt)) + text.close(more_follows=True)

    async def whole(self, generation: Generation) -> dict[str, Any]:
        texts = self._echoes()
        tokens: list[list[AnswerToken]] = [[] for _ in texts]
        reasons = [""] * self._choices
        async for delta in generation.deltas():
            texts[delta.index] += delta.text
            tokens[delta.index] += delta.tokens
            reasons[delta.index] = delta.finish_reason or ""
        choices = [self._choice(index, texts[index], tokens[index], reasons[index]) for index in range(self._choices)]
        return self._envelope.wrap(choices, usage=generation.usage(), speculation=generation.speculation())

    async def chunks(self, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        for index, text in enumerate(self._echoes()):
            if text:
                yield self._chunk(generation, self._choice(index, text, (), None))
        async for delta in generation.deltas():
            more: dict[str, Any] = {}
            if delta.finish_reason is not None and generation.finished and not self._usage:
                more["speculation"] = generation.speculation()
            choice = self._choice(delta.index, delta.text, delta.tokens, delta.finish_reason)
            yield self._chunk(generation, choice, **more)
        if self._usage:
            yield self._envelope.wrap([], usage=generation.usage(), speculation=generation.speculation())

    def _chunk(self, generation: Generation, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
        if self._continuous:
            more["usage"] = generation.usage()
        elif self._usage:
            more["usage"] = None
        return self._envelope.wrap([choice], **more)

    def _choice(
        self, index: int, text: str, tokens: list[AnswerToken] | tuple[AnswerToken, ...], finish_reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._legacy_logprobs(tokens) if self._logprobs else None,
            "finish_reason": finish_reason,
        }

    def _legacy_logprobs(self, listed: list[AnswerToken] | tuple[AnswerToken, ...]) -> dict[str, Any]:
        """OpenAI's parallel arrays. Each entry of top_logprobs holds the most likely tokens and the token itself."""
        label = self._token_bytes.label
        report: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in listed:
            token = entry.token
            own = token.logprobs.logprob if token.logprobs is not None else 0.0
            alternatives = token.logprobs.top if token.logprobs is not None else ()
            report["tokens"].append(label(token.token_id))
            report["token_logprobs"].append(own)
            report["top_logprobs"].append(
                {label(other): logprob for other, logprob in alternatives} | {label(token.token_id): own}
            )
            report["text_offset"].append(entry.text_offset)
        if self._provenance:
            report["provenance"] = [entry.token.provenance.value for entry in listed]
        return report
