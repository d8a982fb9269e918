"""Helpers to run the real engine on the tiny random models."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from core.round import RoundResult
from core.runtime import Runtime
from core.sequence import GenerationRequest
from scheduler.engine import AsyncEngine
from scheduler.events import FinishedEvent, TokensEvent
from scheduler.limits import SchedulerLimits
from scheduler.stats import EngineStats
from scheduler.stream import RequestStream
from tests.scheduler.floor import limits
from tests.tiny import make_request, make_runtime, noisy_copy, random_model, random_prompt


@functools.cache
def models(family: str = "llama") -> tuple[PreTrainedModel, PreTrainedModel]:
    target = random_model(1, family)
    return target, noisy_copy(target)


def runtime(family: str = "llama", num_blocks: int = 400, block_size: int = 16) -> Runtime:
    return make_runtime(*models(family), num_blocks=num_blocks, block_size=block_size)


@dataclass
class Recorder:
    """An observer that remembers what it was told."""

    rounds: list[RoundResult] = field(default_factory=list)
    first_tokens: list[str] = field(default_factory=list)
    finished: dict[str, FinishedEvent] = field(default_factory=dict)

    @property
    def preempted(self) -> list[str]:
        """Of the finished ones, each as often as it was."""
        return [name for name, event in self.finished.items() for _ in event.timings.preempted_at]

    def on_round(self, result: RoundResult, schedule_seconds: float) -> None:
        self.rounds.append(result)

    def on_first_token(self, request: GenerationRequest, seconds: float) -> None:
        assert seconds > 0
        self.first_tokens.append(request.request_id)

    def on_finish(self, request: GenerationRequest, event: FinishedEvent) -> None:
        assert request.request_id not in self.finished
        self.finished[request.request_id] = event


@contextlib.asynccontextmanager
async def serving(
    on: Runtime, bounds: SchedulerLimits | None = None, observer: object | None = None
) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(on, bounds or limits(), observer)  # type: ignore[arg-type]
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def collect(stream: RequestStream) -> tuple[list[int], FinishedEvent]:
    tokens: list[int] = []
    async for event in stream:
        if isinstance(event, TokensEvent):
            assert event.tokens
            tokens.extend(token.token_id for token in event.tokens)
        else:
            return tokens, event
    raise AssertionError("the stream ended without a FinishedEvent")


async def answers(engine: AsyncEngine, requests: list[GenerationRequest]) -> list[tuple[list[int], FinishedEvent]]:
    return await asyncio.gather(*(collect(engine.submit(request)) for request in requests))


async def settled(engine: AsyncEngine) -> EngineStats:
    """The stats once nobody runs or waits."""
    for _ in range(2000):
        stats = engine.stats()
        if not stats.running and not stats.waiting:
            return stats
        await asyncio.sleep(0.005)
    raise AssertionError(f"still busy: {engine.stats()}")


def ask(name: str, seed: int = 1, prompt: int = 10, max_tokens: int = 12, **options: object) -> GenerationRequest:
    return make_request(
        random_prompt(prompt, seed),
        max_tokens=max_tokens,
        request_id=name,
        ignore_eos=True,
        **options,  # type: ignore[arg-type]
    )


def assert_clean(on: Runtime, stats: EngineStats) -> None:
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert stats.blocks_free == stats.blocks_total == on.pool.num_blocks
    on.pool.check_integrity(())


class Gate:
    """Holds the target's forwards until opened, so that a test can act while a round is in flight."""

    def __init__(self, on: Runtime) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        self._forward = on.target.forward
        on.target.forward = self.forward  # type: ignore[method-assign, assignment]

    def forward(self, layout: object) -> object:
        self.entered.set()
        assert self._open.wait(20)
        return self._forward(layout)  # type: ignore[arg-type]

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 20)

    def open(self) -> None:
        self._open.set()


@contextlib.contextmanager
def gated(on: Runtime) -> Iterator[Gate]:
    gate = Gate(on)
    try:
        yield gate
    finally:
        gate.open()
