"""Commit is the only mutation, and it cuts at exactly the right token."""

from collections.abc import Sequence as ListLike

from core.provenance import FinishReason, Provenance
from core.sequence import CommittedToken, Sequence, StopCondition
from tests.tiny import EOS, make_request

P = Provenance


def block(*entries: tuple[int, Provenance]) -> list[CommittedToken]:
    return [CommittedToken(token, provenance) for token, provenance in entries]


class StopAfter:
    """Stops when the token is seen, and remembers everything it was shown."""

    def __init__(self, token: int) -> None:
        self.token, self.seen = token, list[int]()

    def push(self, token_id: int) -> bool:
        self.seen.append(token_id)
        return token_id == self.token


def start(stop: StopCondition | None = None, prompt: ListLike[int] = (5, 6), **options: object) -> Sequence:
    return Sequence(make_request(prompt, **options), stop)  # type: ignore[arg-type]


def test_eos_in_the_middle_of_an_accepted_block_ends_it_there() -> None:
    sequence = start(presence_penalty=0.5)
    delivered = sequence.commit(block((7, P.NATIVE), (EOS, P.NATIVE), (8, P.DEFERRED), (9, P.BONUS)))
    assert [t.token_id for t in delivered] == sequence.output == [7, EOS]
    assert sequence.finish_reason is FinishReason.STOP
    assert (sequence.counters.accepted_tokens, sequence.counters.bonus_tokens) == (2, 0)
    assert sequence.counters.loosened.total() == 0
    assert dict(sequence.output_counts) == {7: 1, EOS: 1}


def test_max_tokens_crossed_inside_a_block_delivers_exactly_that_many() -> None:
    sequence = start(max_tokens=3)
    sequence.commit(block((7, P.NATIVE), (8, P.NATIVE), (9, P.NATIVE), (10, P.CORRECTION)))
    assert sequence.output == [7, 8, 9]
    assert sequence.finish_reason is FinishReason.LENGTH


def test_stop_at_the_last_allowed_token_is_a_stop() -> None:
    sequence = start(max_tokens=2)
    sequence.commit(block((7, P.TARGET), (EOS, P.TARGET)))
    assert sequence.finish_reason is FinishReason.STOP


def test_stop_condition_sees_each_delivered_token_once_and_none_behind_the_end() -> None:
    stop = StopAfter(8)
    sequence = start(stop)
    sequence.commit(block((7, P.NATIVE), (8, P.NATIVE), (9, P.BONUS)))
    assert stop.seen == sequence.output == [7, 8]
    assert sequence.finish_reason is FinishReason.STOP


def test_ignored_eos_is_an_ordinary_token() -> None:
    sequence = start(ignore_eos=True)
    sequence.commit(block((EOS, P.TARGET), (7, P.TARGET)))
    assert sequence.output == [EOS, 7]
    assert not sequence.finished


def test_stop_before_min_tokens_does_not_end_the_answer() -> None:
    stop = StopAfter(7)
    sequence = start(stop, min_tokens=2)
    sequence.commit(block((7, P.TARGET)))
    assert not sequence.finished
    sequence.commit(block((7, P.TARGET)))
    assert sequence.finished


def test_loosened_tokens_are_counted_by_rule() -> None:
    sequence = start()
    sequence.commit(block((7, P.DEFERRED), (8, P.CALIBRATED), (9, P.CALIBRATED), (10, P.BONUS)))
    assert sequence.counters.loosened == {P.DEFERRED: 1, P.CALIBRATED: 2}
    assert sequence.counters.accepted_tokens == 3
    assert sequence.counters.bonus_tokens == 1


def test_the_first_finish_reason_stands() -> None:
    sequence = start()
    sequence.finish(FinishReason.ABORT)
    sequence.finish(FinishReason.STOP)
    assert sequence.finish_reason is FinishReason.ABORT
