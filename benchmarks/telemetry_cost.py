"""What telemetry costs: CPU time a token with spans and metrics sent to a collector, over that with everything off; the
same prompts through the same application and engine, in turns.

The threads that compute wait for each other by spinning, so the CPU time of the whole process varies by more than is
looked for. They do nothing for telemetry, which runs in the event loop's thread and where it is exported: it is the
time of these that is compared, and what telemetry adds to it is set against the whole process's.

Each unit with telemetry on ends with an export of its spans, which is its own; with one of the metrics and a scrape,
whose time is charged by how much of their intervals the unit took, being the same however many requests there were.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from os import environ
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
from fastapi import FastAPI

from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError
from benchmarks.interleave import BalancedOrders, units
from benchmarks.matrix import GREEDY, PRIME_TOKENS, Setting
from benchmarks.otlp_sink import sink
from benchmarks.progress import progress
from benchmarks.samples import Spread
from scheduler.observer import EngineObserver, GuardedObserver
from server.app import create_app
from server.assembly import assemble, serving_config
from server.model_folders import fetch
from server.serving_config import Served, ServingConfig
from server.settings_loading import load_settings
from server.telemetry.telemetry import Telemetry

EXPORT_SECONDS = 60.0  # OTEL_METRIC_EXPORT_INTERVAL, if nobody sets it
SCRAPE_SECONDS = 5.0  # as in configs/stack/prometheus.yml


class Switch(GuardedObserver):
    """An observer that hands on to the one that is switched on, if any."""

    def __init__(self) -> None:
        super().__init__(None)

    def to(self, observer: EngineObserver | None) -> None:
        self._observer = observer


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds a token: of the whole process, and of the threads that may do something for telemetry. CPU seconds of
    one export of metrics, and of a scrape."""

    whole: float
    beside: float
    metrics: float
    scrape: float


@dataclass(frozen=True, slots=True)
class Bench:
    app: FastAPI
    config: ServingConfig
    client: httpx.AsyncClient
    switch: Switch
    on: Telemetry
    off: Telemetry

    async def spent(self, prompts: Sequence[Prompt], fields: Mapping[str, Any], tokens: int, on: bool) -> Spent:
        """While the prompts are answered, all at once."""
        self.switch.to(self.on if on else None)
        self.app.state.telemetry = self.on if on else self.off
        process, loop, began = time.process_time(), time.thread_time(), time.monotonic()
        answered = await asyncio.gather(*(self._ask(prompt, fields, tokens) for prompt in prompts))
        whole, beside, seconds = time.process_time() - process, time.thread_time() - loop, time.monotonic() - began
        spans = metrics = scrape = 0.0
        if on:
            spans, metrics, scrape = await asyncio.to_thread(self._tell)
            beside += spans + metrics * seconds / EXPORT_SECONDS + scrape * seconds / SCRAPE_SECONDS
        return Spent(whole / sum(answered), beside / sum(answered), metrics, scrape)

    def _tell(self) -> list[float]:
        """CPU seconds of this thread for an export of spans, one of metrics, and a scrape."""
        clock = [time.thread_time()]
        for step in (self.on.flush_spans, self.on.flush_metrics, self.on.exposition):
            step()
            clock.append(time.thread_time())
        return [later - earlier for earlier, later in pairwise(clock)]

    async def _ask(self, prompt: Prompt, fields: Mapping[str, Any], tokens: int) -> int:
        """The tokens of one answer."""
        body = {"model": self.config.model, "messages": [{"role": "user", "content": prompt.text}], **fields}
        response = await self.client.post(
            "/v1/chat/completions", json={**body, "max_tokens": tokens, "ignore_eos": True}
        )
        if response.status_code != 200:
            raise BenchError(f"an answer failed: {response.text[:200]}")
        return int(response.json()["usage"]["completion_tokens"])


async def telemetry_cost(
    config: Path, prompts: Sequence[Prompt], setting: Setting, concurrency: Sequence[int], max_tokens: int, passes: int
) -> dict[str, Any]:
    """By number of clients: CPU time a token with telemetry on over that with it off, and the difference."""
    work = [unit for _ in range(passes) for unit in units(prompts, concurrency, groups=3)]
    ratios: dict[int, list[float]] = {size: [] for size in concurrency}
    extra: dict[int, list[float]] = {size: [] for size in concurrency}
    exports: list[Spent] = []
    fields, orders = {**GREEDY, **setting.fields}, BalancedOrders()
    async with _open(config) as bench:
        for on in (True, False):
            await bench.spent(prompts[:2], fields, 16, on)
        with progress("telemetry", 2 * len(work)) as report:
            for unit in work:
                spent: dict[bool, Spent] = {}
                await bench.spent(unit.prompts, fields, PRIME_TOKENS, on=False)
                for on in orders.order(unit, [True, False]):
                    spent[on] = await bench.spent(unit.prompts, fields, max_tokens, on)
                    report()
                more = spent[True].beside - spent[False].beside
                ratios[unit.concurrency].append(1 + more / spent[False].whole)
                extra[unit.concurrency].append(1e6 * more)
                exports.append(spent[True])
                report(f"{unit.concurrency} at once: {ratios[unit.concurrency][-1]:.4f}", steps=0)
    return {
        **{
            f"{size} clients": {"on_over_off": Spread.of(ratios[size]), "microseconds_a_token": Spread.of(extra[size])}
            for size in concurrency
        },
        "export_milliseconds": Spread.of([1e3 * one.metrics for one in exports]),
        "scrape_milliseconds": Spread.of([1e3 * one.scrape for one in exports]),
    }


@asynccontextmanager
async def _open(config: Path) -> AsyncIterator[Bench]:
    settings = load_settings(config)
    folders, serving, switch = await asyncio.to_thread(fetch, settings), serving_config(settings), Switch()

    async def load() -> Served:
        return await asyncio.to_thread(assemble, settings, folders, switch)

    with sink() as address:
        on, off = _telemetry(address)
        app = create_app(serving, load, off)
        key = serving.api_keys[0] if serving.api_keys else "none"
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app),
            base_url="http://bench",
            headers={"Authorization": f"Bearer {key}"},
            timeout=None,
        )
        async with app.router.lifespan_context(app), client:
            readiness = app.state.readiness
            while readiness.status != "ready":
                if readiness.error is not None:
                    raise readiness.error
                await asyncio.sleep(0.05)
            on.follow(serving.model, readiness.stats, readiness.memory_pairs)
            on.begin()
            try:
                yield Bench(app, serving, client, switch, on, off)
            finally:
                await asyncio.to_thread(on.shutdown)


def _telemetry(address: str) -> tuple[Telemetry, Telemetry]:
    """One that sends when it is told to, and one that does nothing."""
    never = {"OTEL_METRIC_EXPORT_INTERVAL": "inf", "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    with patch.dict(environ, {"OTEL_EXPORTER_OTLP_ENDPOINT": address, **never}):
        on = Telemetry()
    with patch.dict(environ, {"OTEL_SDK_DISABLED": "true"}):
        return on, Telemetry()
