from collections import Counter
from itertools import combinations, pairwise, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError
from benchmarks.interleave import MIXED, BalancedOrders, Unit, balanced, rotated, units


def prompts(**counts: int) -> list[Prompt]:
    return [Prompt(category, f"{category}/{i}", "") for category, count in counts.items() for i in range(count)]


@given(st.integers(1, 7), st.integers(0, 30))
def test_every_item_stands_in_every_place_equally_often(size: int, start: int) -> None:
    orders = [rotated(range(size), turn) for turn in range(start, start + size)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert all(len({order[place] for order in orders}) == size for place in range(size))


@given(st.integers(1, 7), st.integers(0, 30))
def test_two_turns_put_every_item_before_every_other_once(size: int, pair: int) -> None:
    orders = [balanced(range(size), turn) for turn in (2 * pair, 2 * pair + 1)]
    before = Counter(two for order in orders for two in combinations(order, 2))
    assert before == Counter(permutations(range(size), 2))


@given(st.integers(1, 7))
def test_over_all_turns_places_and_forerunners_are_shared_evenly(size: int) -> None:
    orders = [balanced(range(size), turn) for turn in range(2 * size)]
    assert Counter(pair for order in orders for pair in enumerate(order)) == dict.fromkeys(
        product(range(size), repeat=2), 2
    )
    assert Counter(two for order in orders for two in pairwise(order)) == dict.fromkeys(permutations(range(size), 2), 2)


def test_kinds_that_take_turns_have_all_orders_each() -> None:
    orders = BalancedOrders()
    kinds = [Unit("a", tuple(prompts(a=1))), Unit("b", tuple(prompts(b=1)))]
    seen: dict[str, Counter[tuple[int, ...]]] = {"a": Counter(), "b": Counter()}
    for _ in range(6):
        for kind in kinds:
            seen[kind.category][tuple(orders.order(kind, range(3)))] += 1
    every = Counter(tuple(balanced(range(3), turn)) for turn in range(6))
    assert seen == {"a": every, "b": every}
    first = [BalancedOrders().order(kinds[0], range(3)), orders.order(Unit("c", kinds[0].prompts), range(3))]
    assert first[0] != first[1]


def test_one_client_asks_every_prompt_once_with_categories_in_turn() -> None:
    found = units(prompts(a=3, b=1), [1], groups=1)
    assert [unit.prompts[0].name for unit in found] == ["a/0", "b/0", "a/1", "a/2"]
    assert [unit.category for unit in found] == ["a", "b", "a", "a"]
    assert [unit.set_index for unit in found] == [None] * 4


@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1), st.integers(24, 60), st.integers(1, 4), st.integers(1, 3))
def test_every_number_of_clients_splits_the_same_sets_of_prompts(
    sizes: list[int], count: int, groups: int, waves: int
) -> None:
    found = units(prompts(a=count // 2, b=count - count // 2), sizes, groups, waves)
    whole = max(sizes) * (waves if max(sizes) > 1 else 1)
    assert all(len(unit.prompts) == unit.concurrency * (waves if unit.concurrency > 1 else 1) for unit in found)
    for index in {unit.set_index for unit in found if unit.set_index is not None}:
        by_size: dict[int, list[Prompt]] = {}
        for unit in found:
            if unit.set_index == index:
                by_size.setdefault(unit.concurrency, []).extend(unit.prompts)
        assert by_size.keys() == set(sizes)
        assert all(len(mine) == whole for mine in by_size.values())
        assert len({frozenset(mine) for mine in by_size.values()}) == 1
    for size in set(sizes):
        asked = [prompt for unit in found if unit.concurrency == size for prompt in unit.prompts]
        assert len(asked) == len(set(asked))
        assert len(asked) == (count if size == 1 else whole * min(groups, count // whole))


def test_groups_are_mixed_of_all_categories() -> None:
    found = units(prompts(a=6, b=3), [4], groups=3)
    assert [(unit.concurrency, unit.set_index) for unit in found] == [(4, 0), (4, 1)]
    assert all(unit.category == MIXED and len(set(unit.prompts)) == 4 for unit in found)
    assert Counter(prompt.category for prompt in found[0].prompts) == {"a": 2, "b": 2}
    assert len(units(prompts(a=6, b=3), [4], groups=1)) == 1


def test_sizes_take_turns_within_a_set() -> None:
    found = [unit.concurrency for unit in units(prompts(a=8), [1, 2, 4, 8], groups=9)]
    assert Counter(found) == {1: 8, 2: 4, 4: 2, 8: 1}
    half = Counter(found[: len(found) // 2])
    assert half == {1: 4, 2: 2, 4: 1}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([2], "2 clients at once need 4 different prompts, there are 3"),
        ([2, 3], "3 clients at once need 6 different prompts, there are 3"),
    ],
)
def test_numbers_of_clients_that_cannot_share_the_prompts_are_refused(sizes: list[int], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        units(prompts(a=3), sizes, groups=1, waves=2)


def test_numbers_of_clients_divide_the_largest() -> None:
    with pytest.raises(BenchError, match="so 2 should divide the largest, 3"):
        units(prompts(a=3), [2, 3], groups=1)
