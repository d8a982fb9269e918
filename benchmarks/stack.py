"""The server's own engine, loaded in this process, and one timed generation through it."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from core.round import RoundResult
from core.runtime import Runtime
from core.sampling_params import SamplingParams
from core.sequence import GenerationRequest, StopCondition
from core.verifiers.params import OffParams, StrictParams, VerifierParams
from scheduler.events import CounterSnapshot, FinishedEvent, TokensEvent
from scheduler.observer import EngineObserver
from scheduler.stats import EngineStats
from server.assembly import assemble
from server.model_folders import Folders, fetch
from server.serving_config import Served
from server.settings import Settings
from server.settings_loading import load_settings

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished generation. decode_seconds: from its first token to its last, prefill excluded."""

    tokens: tuple[int, ...]
    decode_seconds: float
    counters: CounterSnapshot

    @property
    def seconds_per_token(self) -> float:
        return self.decode_seconds / max(1, len(self.tokens) - 1)


class RoundLog(EngineObserver):
    """Keeps every round's phases, for shares of the forward."""

    def __init__(self) -> None:
        self.rounds: list[RoundResult] = []

    def on_submit(self, request: GenerationRequest) -> None: ...

    def on_round(self, result: RoundResult, stats: EngineStats) -> None:
        self.rounds.append(result)

    def on_first_token(self, request: GenerationRequest, seconds: float) -> None: ...

    def on_preemption(self, request: GenerationRequest) -> None: ...

    def on_finish(self, request: GenerationRequest, event: FinishedEvent) -> None: ...


@dataclass
class Stack:
    settings: Settings
    folders: Folders
    served: Served
    log: RoundLog
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)

    def encode_chat(self, message: str) -> list[int]:
        """The model's own chat template around one user message."""
        text = self.served.tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
        )
        return list(self.served.tokenizer.encode(text, add_special_tokens=False))

    @property
    def runtime(self) -> Runtime:
        """What the engine computes with; to be touched only while it is idle."""
        return self.served.engine._runtime

    async def generate(
        self,
        prompt: list[int],
        *,
        max_tokens: int,
        verifier: VerifierParams | None = None,
        drafter: str = "none",
        num_draft_tokens: int = 0,
        sampling: SamplingParams = GREEDY,
        stop: StopCondition | None = None,
        ignore_eos: bool = False,
    ) -> Answer:
        request = GenerationRequest(
            request_id=str(next(self._ids)),
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            sampling=sampling,
            verifier=verifier or (OffParams() if drafter == "none" else StrictParams()),
            drafter=drafter,
            num_draft_tokens=num_draft_tokens,
            end_token_ids=frozenset() if ignore_eos else self.served.eos_token_ids,
        )
        tokens: list[int] = []
        began = ended = 0.0
        async with self.served.engine.submit(request, stop) as stream:
            async for event in stream:
                if isinstance(event, TokensEvent):
                    ended = time.perf_counter()
                    began = began or ended
                    tokens += [token.token_id for token in event.tokens]
                elif isinstance(event, FinishedEvent):
                    if event.message is not None:
                        raise RuntimeError(event.message)
                    return Answer(tuple(tokens), ended - began, event.counters)
        raise RuntimeError("the stream ended without a FinishedEvent")

    async def warm_up(self, prompt: list[int]) -> None:
        await self.generate(prompt, max_tokens=8)
        await self.generate(prompt, max_tokens=16, drafter="prompt_lookup", num_draft_tokens=15)
        if self.served.has_draft:
            await self.generate(prompt, max_tokens=16, drafter="multilevel", num_draft_tokens=15)


@asynccontextmanager
async def open_stack(config: Path) -> AsyncIterator[Stack]:
    """Load what a config names, as `slipstream serve` would, and run its engine."""
    settings = load_settings(config)
    folders = await asyncio.to_thread(fetch, settings)
    log = RoundLog()
    served = await asyncio.to_thread(assemble, settings, folders, log)
    await served.engine.start()
    try:
        yield Stack(settings, folders, served, log)
    finally:
        await served.engine.stop()
