import pytest

from tests.scheduler.floor import limits


@pytest.mark.parametrize("name", ["max_running", "prefill_chunk", "round_tokens", "max_context"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_a_limit_that_is_no_positive_integer_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least"):
        limits(**{name: value})


def test_nobody_may_wait_but_not_fewer_than_nobody() -> None:
    assert limits(max_waiting=0).max_waiting == 0
    with pytest.raises(ValueError, match="max_waiting must be an integer of at least 0"):
        limits(max_waiting=-1)


def test_a_chunk_larger_than_a_round_is_refused() -> None:
    with pytest.raises(ValueError, match=r"prefill_chunk \(65\) must not exceed round_tokens \(64\)"):
        limits(prefill_chunk=65, round_tokens=64)
