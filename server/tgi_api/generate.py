"""POST /generate, /generate_stream, and /, which streams if asked to."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.answer_text import AnswerToken
from server.collected import Collected, collect
from server.errors import invalid
from server.generation import Generation
from server.generation_plan import GenerationPlan
from server.json_body import read_body
from server.live_model import LiveModel
from server.openai_api.answer import answer, in_thread, planning_pool
from server.openai_api.parameters import make_plan
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.telemetry.attributes import TEXT_COMPLETION
from server.tgi_api.errors import tgi_errors, token_events
from server.tgi_api.schemas import GenerateBody, TextGeneration
from server.tgi_api.tokens import TokenLister, alternatives, prefill


class GenerateEndpoints:
    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness

    @tgi_errors
    async def generate(self, request: Request) -> Response:
        """Continue a text. `stream` streams here too."""
        return await self._answer(request)

    @tgi_errors
    async def generate_stream(self, request: Request) -> Response:
        """Continue a text, token by token."""
        return await self._answer(request, always_streamed=True)

    @tgi_errors
    async def generate_compat(self, request: Request) -> Response:
        """Continue a text as the hosted inference API does: whole answers come in a list."""
        return await self._answer(request, in_list=True)

    async def _answer(self, request: Request, always_streamed: bool = False, in_list: bool = False) -> Response:
        model = self._readiness.model()
        body = await read_body(request, GenerateBody)
        streamed = always_streamed or bool(body.stream)
        if streamed:
            body.check_streamed()
        else:
            body.check_whole()
        pool = planning_pool(body.parameters.grammar is not None)
        plan = in_thread(self._plan, body, streamed, model, model=model, param="inputs", pool=pool)
        renderer = GenerateRenderer(body, model, in_list)
        drain = self._config.drain_seconds
        return await answer(request, streamed, plan, model, renderer, drain, TEXT_COMPLETION, token_events)

    def _plan(self, body: GenerateBody, streamed: bool, model: LiveModel) -> GenerationPlan:
        wanted = TextGeneration.of(body, self._config.model, streamed)
        prompt = model.prompts.encode_text(body.inputs, keep=body.parameters.truncate)
        if not prompt:
            raise invalid("'inputs' must not be empty: this model needs a token to start from.", "inputs")
        return make_plan(wanted, [prompt], f"gen-{uuid.uuid4().hex}", self._config, model, "inputs")


class GenerateRenderer:
    """A generation as {generated_text, details}, or as an event for every token."""

    def __init__(self, body: GenerateBody, model: LiveModel, in_list: bool) -> None:
        self._parameters = body.parameters
        self._front = body.inputs if body.parameters.return_full_text else ""
        self._table = model.token_bytes
        self._eos_token_id = min(model.eos_token_ids, default=0)
        self._in_list = in_list

    async def whole(self, generation: Generation) -> Any:
        sequences = await collect(generation)
        answer = await asyncio.to_thread(self._whole, sequences, generation)
        return [answer] if self._in_list else answer

    def _whole(self, sequences: list[Collected], generation: Generation) -> dict[str, Any]:
        [best] = generation.best()
        answer: dict[str, Any] = {"generated_text": self._front + sequences[best].text}
        if self._parameters.details:
            answer["details"] = self._details(sequences[best], best, generation)
            answer["details"]["speculation"] = generation.speculation()
            others = [number for number in range(len(sequences)) if number != best]
            if others:
                answer["details"]["best_of_sequences"] = [
                    {
                        "generated_text": self._front + sequences[number].text,
                        **self._details(sequences[number], number, generation),
                    }
                    for number in others
                ]
        return answer

    def _details(self, sequence: Collected, number: int, generation: Generation) -> dict[str, Any]:
        lister, tokens = self._lister(), sequence.tokens
        details = {
            **self._ending(sequence.finish_reason, tokens[-1:], sequence.text, number, generation),
            "generated_tokens": len(tokens),
            "prefill": [],
            "tokens": [lister.entry(token) for token in tokens[:-1]]
            + [lister.entry(token, sequence.text) for token in tokens[-1:]],
        }
        if self._parameters.decoder_input_details:
            prompt = generation.plan.requests[number].prompt
            details["prefill"] = prefill(prompt, (None, *sequence.prompt), self._table)
        if self._parameters.top_n_tokens:
            details["top_tokens"] = [alternatives(token, self._table) for token in tokens]
        return details

    async def chunks(self, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        lister, text, count = self._lister(), "", 0
        async for delta in generation.deltas():
            text += delta.text
            ended = delta.finish_reason is not None
            for index, token in enumerate(delta.tokens, 1):
                count += 1
                last = ended and index == len(delta.tokens)
                chunk = {"index": count, "token": lister.entry(token, text if last else None)}
                if self._parameters.top_n_tokens:
                    chunk["top_tokens"] = alternatives(token, self._table)
                if not last:
                    yield {**chunk, "generated_text": None, "details": None}
            if delta.finish_reason is not None:
                if not delta.tokens:  # a grammar left no token to take: the end stands alone
                    nothing = {"id": self._eos_token_id, "text": "", "logprob": 0.0, "special": True}
                    chunk = {"index": count + 1, "token": nothing}
                details = self._stream_details(delta.finish_reason, delta.tokens[-1:], text, count, generation)
                yield {**chunk, "generated_text": self._front + text, "details": details}

    def _stream_details(
        self, finish_reason: str, last: Sequence[AnswerToken], text: str, count: int, generation: Generation
    ) -> dict[str, Any] | None:
        if not self._parameters.details:
            return None
        return {
            **self._ending(finish_reason, last, text, 0, generation),
            "generated_tokens": count,
            "input_length": len(generation.plan.requests[0].prompt),
            "speculation": generation.speculation(),
        }

    def _ending(
        self, finish_reason: str, last: Sequence[AnswerToken], text: str, number: int, generation: Generation
    ) -> dict[str, Any]:
        """TGI's word for why it ended, and the seed that would give the same answer again."""
        request = generation.plan.requests[number]
        # An answer may also end because its grammar has.
        stopped = text.endswith(tuple(self._parameters.stop or ()))
        at_stop = stopped and bool(last) and last[0].token.token_id not in request.end_token_ids
        reason = "stop_sequence" if at_stop else "eos_token"
        return {
            "finish_reason": "length" if finish_reason == "length" else reason,
            "seed": None if request.sampling.greedy else request.sampling.seed,
        }

    def _lister(self) -> TokenLister:
        return TokenLister(self._table, bool(self._parameters.return_provenance))
