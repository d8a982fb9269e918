"""What a loose block is expected to deliver, against a slow obvious count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.draft_option import Option
from scheduler.loose_length import expected_drafts

CHANCES = st.floats(0, 0.98)


@given(CHANCES, CHANCES, st.integers(1, 12), st.integers(0, 8), st.floats(0, 1))
def test_only_a_mismatch_with_its_window_in_the_block_may_be_forgiven(
    first: float, later: float, cap: int, window: int, loosening: float
) -> None:
    found = expected_drafts(Option("model", first, later, cap, 1.0), window, loosening)
    for length in range(cap + 1):
        expected, reach = 0.0, 1.0
        for draft in range(1, length + 1):
            right = first if draft == 1 else later
            reach *= right + (1 - right) * (loosening if draft <= length - window else 0.0)
            expected += reach
        assert found[length] == pytest.approx(expected)
