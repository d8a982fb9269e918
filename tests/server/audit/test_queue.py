"""The queue of answers: bounded by number and memory, and no answer twice."""

import pytest

from core.provenance import Provenance
from core.sequence import CommittedToken
from core.verifiers.params import FlyParams
from server.audit import queue as queue_module
from server.audit.queue import LARGEST, MOST_BYTES, AnswerQueue
from server.audit.record import AnswerRecord
from tests.tiny import make_request


def record(number: int, tokens: int = 10, verifier: FlyParams | None = None, held: int = 0) -> AnswerRecord:
    one = AnswerRecord(make_request([5, number], verifier=verifier or FlyParams()), lambda: None, held)
    one.push(CommittedToken(7, Provenance.DEFERRED) for _ in range(tokens))
    return one


def test_the_oldest_give_way_and_the_rest_comes_out_in_order() -> None:
    queue = AnswerQueue(2)
    for number in range(5):
        assert queue.put(record(number)) is None
    assert (len(queue), queue.dropped) == (2, 3)
    assert [queue.take().prompt[1] for _ in range(2)] == [3, 4]


def test_records_take_no_more_memory_together_than_they_may() -> None:
    queue = AnswerQueue(1000)
    for number in range(12):
        assert queue.put(record(number, held=LARGEST - 1000)) is None
    assert len(queue) == MOST_BYTES // LARGEST
    assert queue.dropped == 12 - len(queue)


def test_one_that_would_drive_out_the_others_is_refused() -> None:
    queue = AnswerQueue(10)
    assert queue.put(record(1)) is None
    assert queue.put(record(2, tokens=LARGEST // 8 + 1)) == "too_large"  # each is loosened: 8 bytes a token
    assert queue.put(record(3, held=LARGEST)) == "too_large"
    assert (len(queue), queue.dropped) == (1, 0)


def test_an_answer_is_taken_once_however_often_it_comes() -> None:
    queue = AnswerQueue(10)
    assert queue.put(record(1)) is None
    assert queue.put(record(1)) == "repeated"
    queue.take()
    assert queue.put(record(1)) == "repeated"
    assert queue.put(record(2)) is None
    assert queue.put(record(1, tokens=11)) is None
    assert queue.put(record(1, verifier=FlyParams(window=3))) is None


def test_one_that_gave_way_unjudged_may_come_again() -> None:
    queue = AnswerQueue(1)
    queue.put(record(1))
    queue.put(record(2))
    assert queue.put(record(1)) is None


def test_what_is_long_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "REMEMBERED", 3)
    queue = AnswerQueue(10)
    for number in range(4):
        queue.put(record(number))
        queue.take()
    assert queue.put(record(3)) == "repeated"
    assert queue.put(record(0)) is None


def test_a_cleared_queue_is_as_a_new_one() -> None:
    queue = AnswerQueue(1)
    queue.put(record(1))
    queue.put(record(2))
    queue.clear()
    assert (len(queue), queue.dropped) == (0, 0)
    assert queue.put(record(2)) is None
