"""The server's own engine, loaded in this process; requests are understood as the HTTP side understands them."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.answers import Answer, Group, Speculated, by_clients
from core.round import RoundResult
from core.runtime import Runtime
from core.sequence import GenerationRequest
from scheduler.engine import AsyncEngine
from scheduler.events import CounterSnapshot, FinishedEvent, TokensEvent
from scheduler.observer import EngineObserver
from server.assembly import assemble, serving_config
from server.errors import from_validation
from server.live_model import LiveModel
from server.model_folders import Folders, fetch
from server.openai_api.parameters import make_plan
from server.openai_api.schemas import CompletionBody
from server.serving_config import Served, ServingConfig
from server.settings import Settings
from server.settings_loading import load_settings
from server.text.stop_strings import StopStrings


class RoundLog(EngineObserver):
    """Keeps every round's phases, for shares of the forward."""

    def __init__(self) -> None:
        self.rounds: list[RoundResult] = []

    def on_round(self, result: RoundResult, schedule_seconds: float) -> None:
        self.rounds.append(result)

    def on_first_token(self, request: GenerationRequest, seconds: float) -> None: ...

    def on_finish(self, request: GenerationRequest, event: FinishedEvent) -> None: ...


@dataclass
class Stack:
    """A Door to the engine without HTTP, SSE and text."""

    settings: Settings
    folders: Folders
    served: Served
    model: LiveModel
    config: ServingConfig
    log: RoundLog
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)

    def encode_chat(self, message: str, begin: str = "") -> list[int]:
        """The model's own chat template around one user message, and how its answer begins."""
        text = self.served.language.tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
        )
        return list(self.served.language.tokenizer.encode(text + begin, add_special_tokens=False))

    @property
    def engine(self) -> AsyncEngine:
        return self.served.engine

    @property
    def runtime(self) -> Runtime:
        """What the engine computes with; to be touched only while it is idle."""
        return self.served.engine._runtime

    async def ask(
        self, messages: Sequence[str], fields: Mapping[str, Any], max_tokens: int, clients: int | None = None
    ) -> Group:
        prompts = [self.encode_chat(message) for message in messages]
        return await by_clients([partial(self.answer, one, fields, max_tokens) for one in prompts], clients)

    async def answer(
        self,
        prompt: Sequence[int],
        fields: Mapping[str, Any],
        max_tokens: int,
        begun: asyncio.Event | None = None,
    ) -> Answer:
        """fields: of a completion's body. begun: set when the first token has come. ApiError for a bad field,
        RuntimeError if the engine fails."""
        asking = {"model": self.config.model, "prompt": list(prompt), "max_tokens": max_tokens, **fields}
        try:
            body = CompletionBody.model_validate(asking)
        except ValidationError as error:
            raise from_validation(error) from error
        plan = make_plan(body, [prompt], f"bench-{next(self._ids)}", self.config, self.model, "prompt")
        (request,) = plan.requests
        stop = None if plan.stops is None else StopStrings(plan.stops, self.model.token_bytes)
        tokens: list[int] = []
        arrivals: list[float] = []
        first = 0
        asked = time.perf_counter()
        async with self.engine.submit(request, stop) as stream:
            async for event in stream:
                if isinstance(event, TokensEvent):
                    arrivals.append(time.perf_counter())
                    first = first or len(event.tokens)
                    tokens += [token.token_id for token in event.tokens]
                    if begun is not None:
                        begun.set()
                elif isinstance(event, FinishedEvent):
                    if event.message is not None:
                        raise RuntimeError(event.message)
                    return Answer(
                        tokens=len(tokens),
                        content=tuple(tokens),
                        asked=asked,
                        arrivals=tuple(arrivals),
                        first_tokens=first,
                        prompt_tokens=len(prompt),
                        speculated=_speculated(event.counters),
                        estimated_speedup=None if request.verifier.type == "off" else event.counters.estimated_speedup,
                    )
        raise RuntimeError("the stream ended without a FinishedEvent")


def _speculated(counters: CounterSnapshot) -> Speculated:
    return Speculated(
        rounds=counters.rounds,
        round_tokens=counters.round_tokens,
        draft_tokens=counters.draft_tokens,
        accepted_tokens=counters.accepted_tokens,
        loosened={rule.value: tokens for rule, tokens in counters.loosened.items()},
    )


async def load_stack(config: Path) -> Stack:
    """Load what a config names, as `slipstream serve` would; its engine is not started."""
    settings = load_settings(config)
    folders = await asyncio.to_thread(fetch, settings)
    log, serving = RoundLog(), serving_config(settings)
    served = await asyncio.to_thread(assemble, settings, folders, log)
    model = await asyncio.to_thread(LiveModel.build, served, serving)
    return Stack(settings, folders, served, model, serving, log)


@asynccontextmanager
async def open_stack(config: Path) -> AsyncIterator[Stack]:
    """A stack whose engine runs."""
    stack = await load_stack(config)
    await stack.engine.start()
    try:
        yield stack
    finally:
        await stack.engine.stop()
