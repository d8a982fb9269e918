from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.datasets import Prompt
from benchmarks.interleave import MIXED, rotated, units


def prompts(**counts: int) -> list[Prompt]:
    return [Prompt(category, f"{category}/{i}", "") for category, count in counts.items() for i in range(count)]


@given(st.integers(1, 7), st.integers(0, 30))
def test_every_item_stands_in_every_place_equally_often(size: int, start: int) -> None:
    orders = [rotated(range(size), turn) for turn in range(start, start + size)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert all(len({order[place] for order in orders}) == size for place in range(size))


def test_one_client_asks_every_prompt_once_with_categories_in_turn() -> None:
    found = units(prompts(a=3, b=1), [1], groups=1)
    assert [unit.prompts[0].name for unit in found] == ["a/0", "b/0", "a/1", "a/2"]
    assert [unit.category for unit in found] == ["a", "b", "a", "a"]


def test_groups_are_mixed_distinct_and_of_the_size_asked_for() -> None:
    found = units(prompts(a=6, b=3), [4], groups=3)
    assert [unit.concurrency for unit in found] == [4, 4]
    assert all(unit.category == MIXED and len(set(unit.prompts)) == 4 for unit in found)
    assert Counter(prompt.category for prompt in found[0].prompts) == {"a": 2, "b": 2}
    assert len(units(prompts(a=6, b=3), [4], groups=1)) == 1


def test_sizes_take_turns() -> None:
    found = [unit.concurrency for unit in units(prompts(a=8), [1, 2, 4], groups=9)]
    assert Counter(found) == {1: 8, 2: 4, 4: 2}
    half = Counter(found[: len(found) // 2])
    assert half == {1: 4, 2: 2, 4: 1}


def test_more_clients_than_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="8 clients at once need 8 different prompts, there are 3"):
        units(prompts(a=3), [8], groups=1)
