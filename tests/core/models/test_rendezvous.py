"""Threads that wait for each other: no stage begins before all of them are through with the one before."""

import ctypes
import platform

import numpy as np
import pytest
from numba import carray, cfunc, types

from core.models.pointers import at, claim, put, wholes_at
from core.models.rendezvous import call_number, give_way_address, meet
from core.models.team import TeamFunction, team_size_address

pytestmark = pytest.mark.skipif(
    not team_size_address() or platform.machine() not in ("x86_64", "AMD64"),
    reason="torch brought no libgomp, or the machine has no instruction for a pause",
)

STAGES, MOST = 400, 8


class Call(ctypes.Structure):
    """board: int64 [STAGES, MOST], where each thread writes its number in each stage. early: those found missing."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("joined", "met", "early", "board", "team_size", "give_way"))


CALL = np.dtype(Call)


def stages(pointer):  # type: ignore[no-untyped-def]
    call = carray(pointer, 1, CALL)[0]
    me, threads, board = claim(pointer, 0), call_number(call.team_size), wholes_at(call.board)
    for stage in range(STAGES):
        put(board, stage * MOST + me, np.int64(1))
        meet(pointer, 1, threads, call.give_way)
        for other in range(threads):
            if at(board, stage * MOST + other) == 0:
                claim(pointer, 2)


@pytest.mark.parametrize("threads", [1, 2, 3, MOST])
@pytest.mark.parametrize("give_way", [0, give_way_address()])
def test_all_are_through_with_a_stage_before_one_begins_the_next(threads: int, give_way: int) -> None:
    """More threads than processors, too: who waits must let the others run."""
    if threads == MOST and not give_way:
        pytest.skip("spinning alone would wait for the system's clock in every stage")
    board = np.zeros((STAGES, MOST), dtype=np.int64)
    call = Call(board=board.ctypes.data, team_size=team_size_address(), give_way=give_way)
    function = TeamFunction(cfunc(types.void(types.voidptr))(stages))
    function(ctypes.addressof(call), threads, False)
    assert call.joined == threads
    assert call.met == threads * STAGES
    assert call.early == 0
    assert np.array_equal(board.sum(axis=1), np.full(STAGES, threads))


def test_the_address_lets_others_run() -> None:
    address = give_way_address()
    assert address
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 0
