"""What breaks ends with an error for those it concerns; the engine serves on."""

import asyncio
import logging
from dataclasses import replace

import pytest
import torch

from core.device_errors import is_device_lost, is_out_of_memory
from core.provenance import FinishReason
from core.runtime import Runtime
from scheduler.admission import EngineStopped
from scheduler.engine import ERROR_MESSAGE
from scheduler.failures import FATAL_ROUNDS
from tests.scheduler.floor import limits
from tests.scheduler.serving import Recorder, answers, ask, assert_clean, collect, runtime, serving, settled


def fail_at(on: Runtime, call: int) -> None:
    """Let the target's forward number `call`, counted from here, raise."""
    forward, calls = on.target.forward, 0

    def failing(layout: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise MemoryError("secret internals")
        return forward(layout)  # type: ignore[arg-type]

    on.target.forward = failing  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("call", [1, 3])
async def test_a_failing_round_ends_its_own_sequences_only(call: int, caplog: pytest.LogCaptureFixture) -> None:
    requests = [ask(str(n), seed=n, drafter="model", num_draft_tokens=3) for n in range(5)]
    async with serving(runtime()) as engine:
        expected = await answers(engine, requests)
    on, recorder = runtime(), Recorder()
    fail_at(on, call)
    with caplog.at_level(logging.CRITICAL, logger="scheduler.engine"):
        async with serving(on, limits(max_running=2), recorder) as engine:
            results = await answers(engine, requests)
            stats = await settled(engine)
            assert_clean(on, stats)
            again = await answers(engine, requests)
    failed = [last for _, last in results if last.reason is FinishReason.ERROR]
    assert len(failed) == stats.finished[FinishReason.ERROR] == 2
    assert stats.failed_rounds == 1
    assert {last.message for last in failed} == {ERROR_MESSAGE}
    for (tokens, last), (wanted, _) in zip(results, expected, strict=True):
        assert tokens == (wanted if last.reason is FinishReason.LENGTH else wanted[: len(tokens)])
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in expected]


async def test_a_failing_plan_ends_the_running_ones_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    on = runtime()
    async with serving(on) as engine:
        plan, calls = engine._batcher.plan, 0

        def failing() -> object:
            nonlocal calls
            calls += 1
            if calls in (1, 3):
                raise RuntimeError("a bug")
            return plan()

        monkeypatch.setattr(engine._batcher, "plan", failing)
        results = await answers(engine, [ask(str(n)) for n in range(4)])
        reasons = [last.reason for _, last in results]
        assert reasons == [FinishReason.ERROR] * 4  # the first in line, then the three that ran
        assert (await collect(engine.submit(ask("a"))))[1].reason is FinishReason.LENGTH
        assert_clean(on, await settled(engine))


class Grumbler(Recorder):
    def __getattribute__(self, name: str) -> object:
        if name.startswith("on_"):
            raise OSError("no telemetry today")
        return super().__getattribute__(name)


async def test_a_broken_observer_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(runtime(), observer=Grumbler()) as engine:
        _, last = await collect(engine.submit(ask("a")))
    assert last.reason is FinishReason.LENGTH
    assert {"on_round", "on_first_token", "on_finish"} <= {record.getMessage().split()[-1] for record in caplog.records}


async def test_an_inconsistent_pool_is_reported_when_idle(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = runtime()

    def inconsistent(sequences: object) -> None:
        raise RuntimeError("block 7 is lost")

    on.pool.check_integrity = inconsistent  # type: ignore[method-assign]
    monkeypatch.setattr("scheduler.engine.QUIET_SECONDS", 0.01)
    async with serving(on) as engine:
        await collect(engine.submit(ask("a")))
        await asyncio.sleep(0.1)
        assert any("inconsistent" in record.getMessage() for record in caplog.records)
        assert (await collect(engine.submit(ask("b"))))[1].reason is FinishReason.LENGTH


def fail_always(on: Runtime, error: Exception) -> None:
    def failing(layout: object) -> object:
        raise error

    on.target.forward = failing  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("error", [MemoryError("again"), torch.OutOfMemoryError("CUDA out of memory.")])
async def test_an_engine_whose_every_round_fails_gives_up(error: Exception) -> None:
    on = runtime()
    fail_always(on, error)
    async with serving(on, limits(max_running=1)) as engine:
        results = await answers(engine, [ask(str(n)) for n in range(FATAL_ROUNDS + 3)])
        assert {last.reason for _, last in results} == {FinishReason.ERROR}
        assert engine.stats().failed_rounds == FATAL_ROUNDS
        assert engine.failure is error
        with pytest.raises(EngineStopped):
            engine.submit(ask("late"))


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"),
    ],
)
async def test_a_lost_device_is_the_end_at_once(error: Exception) -> None:
    on = runtime()
    fail_always(on, error)
    async with serving(on) as engine:
        _, last = await collect(engine.submit(ask("a")))
        assert (last.reason, last.message) == (FinishReason.ERROR, ERROR_MESSAGE)
        assert engine.failure is error
        assert not engine.accepting


async def test_failures_that_pass_are_forgotten() -> None:
    on = runtime()
    async with serving(on) as engine:
        for n in range(2 * FATAL_ROUNDS):
            forward = on.target.forward
            fail_always(on, torch.AcceleratorError("CUDA error: out of memory", 2))
            assert (await collect(engine.submit(ask(f"bad {n}"))))[1].reason is FinishReason.ERROR
            on.target.forward = forward  # type: ignore[method-assign]
            assert (await collect(engine.submit(ask(f"good {n}"))))[1].reason is FinishReason.LENGTH
        assert engine.failure is None


def test_what_an_exception_says_of_the_device() -> None:
    def raised_from(cause: Exception) -> Exception:
        wrapped = ValueError("a round failed")
        wrapped.__cause__ = cause
        return wrapped

    lost = torch.AcceleratorError("CUDA error: device-side assert triggered", 710)
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    assert is_device_lost(lost)
    assert is_device_lost(raised_from(lost))
    assert is_out_of_memory(full)
    assert is_out_of_memory(raised_from(full))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    for error in (full, raised_from(full), RuntimeError("shapes differ"), MemoryError()):
        assert not is_device_lost(error)
    assert not is_out_of_memory(lost)


async def test_a_failed_background_round_is_in_nobodys_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no forward today")

    async with serving(runtime()) as engine:
        monkeypatch.setattr("scheduler.engine.run_round", broken)
        _, end = await collect(engine.submit(replace(ask("own"), background=True)))
        assert end.reason is FinishReason.ERROR
        stats = await settled(engine)
        assert (stats.failed_rounds, stats.rounds, stats.finished) == (0, 0, {})
