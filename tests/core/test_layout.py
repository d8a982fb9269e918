import pytest

from core.layout import RaggedLayout, Segment


def example() -> RaggedLayout:
    """The worked example of the module's docstring."""
    return RaggedLayout.build(
        [
            Segment((10, 11, 12), 0, (7,), 0),
            Segment((26, 97, 98), 6, (2, 5, 9), 3),
            Segment((34, 35), 4, (1, 3), 1),
        ],
        block_size=4,
    )


def test_rows_positions_slots_and_logits_of_the_worked_example() -> None:
    layout = example()
    assert layout.query_starts == (0, 3, 6, 8)
    assert layout.logit_starts == (0, 0, 3, 4)
    assert layout.token_ids() == [10, 11, 12, 26, 97, 98, 34, 35]
    assert layout.positions() == [0, 1, 2, 6, 7, 8, 4, 5]
    assert layout.logit_rows() == [3, 4, 5, 7]
    assert layout.slots() == [28, 29, 30, 22, 23, 36, 12, 13]
    assert (layout.num_rows, layout.num_logits) == (8, 4)


@pytest.mark.parametrize(
    ("segments", "complaint"),
    [
        ([], "at least one segment"),
        ([Segment((), 0, (1,), 0)], "no rows"),
        ([Segment((1, 2), 0, (1,), 3)], "wants 3 logits of 2 rows"),
        ([Segment((1, 2), 3, (1,), 1)], "needs 5 positions"),
    ],
)
def test_impossible_layouts_are_refused(segments: list[Segment], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RaggedLayout.build(segments, block_size=4)
