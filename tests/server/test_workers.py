"""WorkPool: bounded, and giving back what was never begun."""

import asyncio
import threading

import pytest

from server.errors import ApiError
from server.workers import WorkPool


async def test_a_full_pool_refuses_with_a_429_and_serves_again_once_there_is_room() -> None:
    pool, gate = WorkPool("test", threads=1, waiting=1), threading.Event()
    first, second = (asyncio.create_task(pool.run(gate.wait, 30)) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as full:
        await pool.run(str)
    assert full.value.status == 429
    assert "Retry-After" in full.value.headers
    gate.set()
    assert await first is await second is True
    assert await pool.run(str, 5) == "5"


async def test_what_waits_is_given_up_with_its_caller() -> None:
    pool, gate, begun = WorkPool("test", threads=1, waiting=1), threading.Event(), []
    running = asyncio.create_task(pool.run(gate.wait, 30))
    waiting = asyncio.create_task(pool.run(begun.append, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    another = asyncio.create_task(pool.run(str, 7))
    await asyncio.sleep(0)
    gate.set()
    assert await running
    assert await another == "7"
    assert begun == []


async def test_errors_of_the_work_are_the_callers() -> None:
    pool = WorkPool("test", threads=1, waiting=0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 1, 0)
