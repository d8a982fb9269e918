"""The waiting room: its order, its bound and what it tells those it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.admission import QueueFull, WaitingRoom
from scheduler.job import AGE_SECONDS, Job
from tests.scheduler.floor import job, request


def names(room: WaitingRoom) -> list[str]:
    return [room.take_first().request_id for _ in range(len(room))]


def test_lower_priority_value_goes_first_and_ties_by_arrival() -> None:
    room = WaitingRoom()
    for arrival, (name, priority) in enumerate([("a", 1), ("b", 0), ("c", 1), ("d", 0), ("e", -1)]):
        room.put(job(request(name, priority=priority), arrival))
    assert names(room) == ["e", "b", "d", "a", "c"]


def test_age_outweighs_priority_in_the_end() -> None:
    room = WaitingRoom()
    room.put(job(request("old", priority=1), 0, at=0.0))
    room.put(job(request("urgent", priority=0), 1, at=0.5 * AGE_SECONDS))
    room.put(job(request("late", priority=0), 2, at=1.5 * AGE_SECONDS))
    assert names(room) == ["urgent", "old", "late"]


def test_a_preempted_job_stands_in_front_of_its_class() -> None:
    room = WaitingRoom()
    jobs = [job(request(str(n)), n, at=n) for n in range(4)]
    for entry in jobs:
        room.put(entry)
    first = room.take_first()
    room.put(first)
    assert names(room) == ["0", "1", "2", "3"]


def test_full_room_refuses_and_takes_preempted_ones_all_the_same() -> None:
    room = WaitingRoom()
    room.enter(job(request("a"), 0), places=1, now=0.0)
    with pytest.raises(QueueFull, match=r"1 requests are waiting.* retry in 5 s") as refused:
        room.enter(job(request("b"), 1), places=1, now=0.0)
    assert refused.value.retry_after == 5.0
    room.put(job(request("c"), 2))
    assert len(room) == 2


def test_retry_after_follows_the_recent_finish_rate() -> None:
    room = WaitingRoom()
    for now in range(0, 100, 4):
        room.note_finish(float(now))
    assert room.retry_after(100.0) == 4.0
    for _ in range(40):
        room.note_finish(100.0)
    assert room.retry_after(100.5) == 1.0
    assert room.retry_after(1e6) == 60.0


def test_nobody_waits() -> None:
    room = WaitingRoom()
    assert room.first() is None
    with pytest.raises(IndexError, match="nobody is waiting"):
        room.take_first()


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "remove"]), st.integers(-2, 2), st.integers(0, 50))))
def test_room_behaves_like_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    room, oracle = WaitingRoom(), list[Job]()
    for arrival, (step, priority, pick) in enumerate(steps):
        if step == "put":
            entry = job(request(str(arrival), priority=priority), arrival, at=arrival * 3.0)
            room.put(entry)
            oracle.append(entry)
        elif oracle and step == "take":
            expected = min(oracle, key=lambda entry: entry.rank)
            oracle.remove(expected)
            assert room.first() is expected
            assert room.take_first() is expected
        elif oracle:
            gone = oracle.pop(pick % len(oracle))
            room.remove(gone)
        assert len(room) == len(oracle)
    oracle.sort(key=lambda entry: entry.rank)
    assert names(room) == [entry.request_id for entry in oracle]
