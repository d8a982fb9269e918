"""What the scheduler itself costs per round: python -m tests.scheduler.measure_planning [running]

Prints the median and the 99th percentile of Batcher.plan() with that many running sequences of mixed
verifiers: while decoding with room to spare, with rows short and beside a prompt being prefilled, with fixed draft
lengths, then with adaptive ones where rows are cheap and where they are dear; then the
mean of all that the engine and the streams' consumers do around a round (plan, hand-over to the worker
thread, publish, read), with rounds that compute nothing. All is processor time, so that a busy machine does
not blur it.
"""

import asyncio
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from core.drafters.model import DraftReach
from core.forward_costs import ForwardCosts, LiveCosts, RowCurve
from core.round import ItemResult, RoundPlan, RoundResult
from scheduler.engine import AsyncEngine
from scheduler.job import Job
from tests.scheduler.floor import Floor, limits, request
from tests.scheduler.serving import collect

KINDS = [("off", 0), ("strict", 8), ("fly", 10), ("strict", 12)]


CHEAP = ForwardCosts(RowCurve({1: 1.0, 64: 1.1, 1024: 3.0}), RowCurve({1: 0.05, 8: 0.05, 64: 0.08}))
DEAR = ForwardCosts(RowCurve({1: 1.0, 4: 1.1, 8: 1.6, 32: 5.0}), RowCurve({1: 0.3, 8: 0.4}))


def report(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    median, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(f"{what:48} median {median * 1e6:7.0f} us   p99 {high * 1e6:7.0f} us   ({len(ordered)} rounds)")


def busy_floor(running: int, round_tokens: int, costs: ForwardCosts | None = None) -> Floor:
    bounds = limits(max_running=running + 1, prefill_chunk=512, round_tokens=round_tokens, max_context=4096)
    live = LiveCosts()
    if costs is not None:
        live.begin(costs)
    floor = Floor(
        num_blocks=running * 300, block_size=16, limits=bounds, costs=live, reach=DraftReach(1000), acceptance=0.7
    )
    for n in range(running):
        verifier, drafts = KINDS[n % len(KINDS)]
        drafter = "multilevel" if costs else "prompt_lookup"
        asked = request(str(n), verifier, drafts, 200, 3000, drafter=drafter, adaptive=costs is not None)
        floor.add(replace(asked, other_drafters=("prompt_lookup",)) if costs and drafts else asked)
    while any(not job.sequence.output_len for job in floor.jobs.values()):
        advance(floor)
    return floor


def advance(floor: Floor) -> float:
    began = time.thread_time()
    batch = floor.batcher.plan()
    spent = time.thread_time() - began
    assert batch is not None
    for entry in batch.plan.catch_up:
        floor.pool.commit_tokens(entry.sequence, entry.sequence.target_tokens, entry.upto)
    results = tuple(floor.commit(job, item) for job, item in zip(batch.jobs, batch.plan.items, strict=True))
    began = time.thread_time()
    floor.batcher.learn(batch, RoundResult(results, 0.0, 0.0, 0.0, 0.0, len(results)))
    return spent + time.thread_time() - began


def measure_plans(running: int) -> None:
    floor = busy_floor(running, 2048)
    report(f"plan, {running} decoding", [advance(floor) for _ in range(300)])
    for name, costs in (("cheap", CHEAP), ("dear", DEAR)):
        floor = busy_floor(running, 2048, costs)
        report(f"plan, {running} decoding, adaptive, {name} rows", [advance(floor) for _ in range(300)])
    floor = busy_floor(running, 512 + 11)
    floor.limits = floor.batcher.limits = limits(max_running=running + 1, round_tokens=6 * running)
    report(f"plan, {running} decoding, rows for half the drafts", [advance(floor) for _ in range(300)])
    floor = busy_floor(running, 2048)
    seconds = []
    for n in range(40):
        floor.add(request(f"new {n}", prompt=3000, max_tokens=1))
        while f"new {n}" not in floor.finished:
            seconds.append(advance(floor))
    report(f"plan, {running} decoding beside a prompt", seconds)


def time_calls(engine: AsyncEngine, method: str) -> list[float]:
    """Processor seconds of each call of the method from now on."""
    seconds: list[float] = []
    inner = getattr(engine, method)

    def timed(*arguments: object) -> object:
        began = time.thread_time()
        result = inner(*arguments)
        seconds.append(time.thread_time() - began)
        return result

    setattr(engine, method, timed)
    return seconds


async def measure_engine(running: int) -> None:
    floor = Floor(num_blocks=running * 300, block_size=16)
    runtime: Any = SimpleNamespace(
        pool=floor.pool,
        target=SimpleNamespace(vocab_size=1000),
        available_drafters=lambda: ("prompt_lookup",),
        draft_reach=DraftReach(),
        forward_costs=LiveCosts(),
        max_ngram=4,
    )
    marks: list[float] = []
    sizes: list[int] = []

    def empty_round(plan: RoundPlan, _: object) -> RoundResult:
        began = time.thread_time()
        results = []
        for item in plan.items:
            yields = item.yields
            floor.commit(Job(item.sequence, 0, 0.0), item)
            tokens = tuple(floor.committed[item.sequence.request.request_id]) if yields else ()
            results.append(ItemResult(item.sequence, tokens, item.num_drafts, max(len(tokens) - 1, 0)))
        marks.append(time.thread_time() - began)
        sizes.append(len(results))
        phases = dict.fromkeys(("draft_seconds", "forward_seconds", "evidence_seconds", "commit_seconds"), 0.0)
        return RoundResult(items=tuple(results), decoding=len(results), **phases)

    bounds = limits(max_running=running, prefill_chunk=512, round_tokens=2048, max_context=4096)
    with patch("scheduler.engine.run_round", empty_round):
        engine = AsyncEngine(runtime, bounds)
        await engine.start()
        streams = []
        for n in range(running):
            verifier, drafts = KINDS[n % len(KINDS)]
            asked = request(str(n), verifier, drafts, prompt=20, max_tokens=300 * (1 + drafts // 2))
            streams.append(engine.submit(asked))
        seconds = time_calls(engine, "_publish")
        began = time.process_time()
        await asyncio.gather(*map(collect, streams))
        spent = time.process_time() - began - sum(marks)
        report(f"publish, up to {running} streams", seconds)
        streams_each = sum(sizes) / len(sizes)
        print(f"engine around a round of {streams_each:.0f} streams being read: mean {spent / len(marks) * 1e6:.0f} us")
        await engine.stop()


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    measure_plans(count)
    asyncio.run(measure_engine(count))
