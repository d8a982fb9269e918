"""POST /v1/completions: raw prompts, as text or as token ids, one or several."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from core.sequence import TokenLogprobs
from server.collected import Collected, collect
from server.errors import invalid, model_not_found
from server.generation import Generation
from server.generation_plan import GenerationPlan
from server.json_body import read_body
from server.live_model import LiveModel
from server.openai_api.answer import Envelope, answer, in_thread, planning_pool
from server.openai_api.legacy_logprobs import LegacyLogprobs, prompt_offsets
from server.openai_api.parameters import make_plan
from server.openai_api.schemas import CompletionBody
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.telemetry.attributes import TEXT_COMPLETION
from server.text.detokenizer import Detokenizer
from server.text.token_bytes import TokenBytes

_TOKENS_A_PART = 1024  # of a streamed prompt's log-probabilities


class CompletionEndpoint:
    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness

    async def __call__(self, request: Request) -> Response:
        """Create a completion, whole or streamed."""
        model = self._readiness.model()
        body = await read_body(request, CompletionBody)
        if not self._config.serves(body.model):
            raise model_not_found(body.model, self._config.model)
        most = self._config.limits.max_prompts
        if len(body.prompt) > most:
            raise invalid(f"'prompt' may hold at most {most} prompts, got {len(body.prompt)}.", "prompt")
        envelope = Envelope.new("cmpl", "text_completion", self._config.model, model)
        pool = planning_pool(body.wishes)
        plan = in_thread(self._plan, body, envelope.id, model, model=model, param="prompt", pool=pool)
        renderer = CompletionRenderer(envelope, body, model.token_bytes)
        drain = self._config.drain_seconds
        return await answer(request, bool(body.stream), plan, model, renderer, drain, TEXT_COMPLETION)

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
        self._logprobs = body.logprobs is not None
        self._provenance = bool(body.return_provenance)
        self._usage = body.include_usage
        self._continuous = body.continuous_usage

    def _echoes(self) -> list[str]:
        """What each sequence's text begins with. Only once the plan stands: until then `n` and the prompt's token
        ids are whatever the client wrote."""
        echoes = [self._echo(prompt) if self._body.echo else "" for prompt in self._body.prompt]
        return [echo for echo in echoes for _ in range(self._body.candidates)]

    def _echo(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        text = Detokenizer()
        return text.feed(b"".join(self._token_bytes[token] for token in prompt)) + text.close(more_follows=True)

    async def whole(self, generation: Generation) -> dict[str, Any]:
        sequences = await collect(generation)
        choices = await asyncio.to_thread(self._choices, sequences, generation)
        return self._envelope.wrap(choices, usage=generation.usage(), speculation=generation.speculation())

    def _choices(self, sequences: list[Collected], generation: Generation) -> list[dict[str, Any]]:
        choices, echoes = [], self._echoes()
        for index, number in enumerate(generation.best()):
            sequence, echo, report = sequences[number], echoes[number], self._report()
            if self._body.prompt_alternatives is not None:
                prompt = generation.plan.requests[number].prompt
                report.add_prompt(prompt, self._offsets(number, prompt, echo), (None, *sequence.prompt))
            report.add_answer(sequence.tokens, len(echo))
            choices.append(self._choice(index, echo + sequence.text, report, sequence.finish_reason))
        return choices

    async def chunks(self, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        echoes = self._echoes()
        if self._body.prompt_alternatives is None:
            for index, text in enumerate(echoes):
                if text:
                    yield self._chunk(generation, self._choice(index, text, self._report(), None))
        async for delta in generation.deltas():
            echo = echoes[delta.index]
            if delta.prompt is not None:
                parts = await asyncio.to_thread(self._prompt_parts, delta.index, generation, echo, delta.prompt)
                for part in parts:
                    yield self._chunk(generation, part)
                continue
            more: dict[str, Any] = {}
            if delta.finish_reason is not None and generation.finished and not self._usage:
                more["speculation"] = generation.speculation()
            report = self._report()
            report.add_answer(delta.tokens, len(echo))
            choice = self._choice(delta.index, delta.text, report, delta.finish_reason)
            yield self._chunk(generation, choice, **more)
        if self._usage:
            yield self._envelope.wrap([], usage=generation.usage(), speculation=generation.speculation())

    def _prompt_parts(
        self, number: int, generation: Generation, echo: str, logprobs: tuple[TokenLogprobs, ...]
    ) -> list[dict[str, Any]]:
        """The echoed prompt with its log-probabilities, in pieces that are quickly encoded; mostly one."""
        prompt, known = generation.plan.requests[number].prompt, (None, *logprobs)
        offsets = self._offsets(number, prompt, echo)
        parts = []
        for start in range(0, len(prompt), _TOKENS_A_PART):
            end = start + _TOKENS_A_PART
            report = self._report()
            report.add_prompt(prompt[start:end], offsets[start:end], known[start:end])
            text = echo[offsets[start] if start else 0 : offsets[end] if end < len(prompt) else len(echo)]
            parts.append(self._choice(number, text, report, None))
        return parts

    def _offsets(self, number: int, prompt: tuple[int, ...], echo: str) -> list[int]:
        written = isinstance(self._body.prompt[number // self._body.candidates], str)
        return prompt_offsets(prompt, echo, self._token_bytes, written)

    def _report(self) -> LegacyLogprobs:
        return LegacyLogprobs(self._token_bytes, self._provenance)

    def _chunk(self, generation: Generation, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
        if self._continuous:
            more["usage"] = generation.usage()
        elif self._usage:
            more["usage"] = None
        return self._envelope.wrap([choice], **more)

    def _choice(self, index: int, text: str, report: LegacyLogprobs, finish_reason: str | None) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": report.report() if self._logprobs else None,
            "finish_reason": finish_reason,
        }
