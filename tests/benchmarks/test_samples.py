import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.answers import Answer, Group, Speculated
from benchmarks.datasets import Prompt
from benchmarks.interleave import Unit
from benchmarks.samples import Sample, Spread, summarise


def answer(*tokens: int, seconds: float, asked: float = 0.0, first: float = 1.0, **more: object) -> Answer:
    """The first token after `first` seconds, the last `seconds` later."""
    return Answer(len(tokens), tokens, asked, (asked + first, asked + first + seconds), **more)  # type: ignore[arg-type]


def unit(category: str, clients: int = 1) -> Unit:
    return Unit(category, tuple(Prompt(category, f"{category}/{i}", "") for i in range(clients)), None, clients)


def test_prefill_counts_for_the_first_token_and_not_for_the_rest() -> None:
    one = answer(1, 2, 3, 4, 5, seconds=2.0, first=7.0)
    assert one.first_token_seconds == 7.0
    assert one.token_seconds == 0.5
    assert Group((one,)).rate == 2.0
    assert Group((one,)).whole_rate == pytest.approx(5 / 9)


def test_tokens_of_the_first_arrival_are_not_decoded() -> None:
    assert answer(1, 2, 3, 4, seconds=1.0, first_tokens=2).token_seconds == 0.5
    assert answer(1, 2, seconds=1.0, first_tokens=2).token_seconds is None
    assert Group((answer(1, seconds=0.0),)).rate is None


def test_a_group_is_timed_from_its_earliest_first_token_to_its_last() -> None:
    group = Group((answer(1, 2, 3, seconds=4.0), answer(1, 2, 3, 4, 5, seconds=1.0, first=2.0)))
    assert group.rate == (2 + 4) / 4.0
    assert group.whole_rate == 8 / 5.0


def test_a_busy_rate_leaves_out_the_wait_for_the_slowest_answer() -> None:
    slow = Answer(9, tuple(range(9)), 0.0, tuple(float(second) for second in range(1, 10)))
    fast = Answer(5, tuple(range(5)), 0.0, tuple(1 + second / 2 for second in range(5)))
    group = Group((slow, fast))
    assert group.rate == (8 + 4) / 8.0
    assert group.busy_rate == (2 + 4) / 2.0  # from second 1 to second 3, when the second client has its answer
    assert Group((slow,)).busy_rate == Group((slow,)).rate == 1.0


def test_a_client_that_goes_on_with_a_next_prompt_keeps_the_window_open() -> None:
    slow = Answer(9, tuple(range(9)), 0.0, tuple(float(second) for second in range(1, 10)))
    first = Answer(3, (0, 1, 2), 0.0, (1.0, 2.0, 3.0))
    then = Answer(4, (0, 1, 2, 3), 3.0, (4.0, 4.0, 5.0, 7.0), first_tokens=2)
    group = Group((slow, first, then), clients=2)
    assert group.busy_rate == pytest.approx((6 + 2 + 4) / 6.0)  # from second 1 to second 7


@given(st.lists(st.tuples(st.integers(2, 30), st.integers(1, 9)), min_size=1, max_size=12), st.integers(1, 4))
def test_a_busy_rate_is_that_of_the_tokens_counted_one_by_one(tasks: list[tuple[int, int]], clients: int) -> None:
    clients = min(clients, len(tasks))
    free, answers = [0.0] * clients, []
    for tokens, pace in tasks:  # each client is free again when its answer is there
        at = free.index(min(free))
        asked = free[at]
        arrivals = tuple(asked + pace * (i + 1) for i in range(tokens))
        answers.append(Answer(tokens, tuple(range(tokens)), asked, arrivals))
        free[at] = arrivals[-1]
    group = Group(tuple(answers), clients)
    began, ended = max(one.arrivals[0] for one in answers[:clients]), min(free)
    counted = sum(began < arrival <= ended for one in answers for arrival in one.arrivals)
    rate = group.busy_rate
    assert rate == (pytest.approx(counted / (ended - began)) if ended > began and counted else None)


def test_a_ratio_is_speed_over_the_baselines_on_the_same_unit() -> None:
    off, fast = (Group((answer(1, 2, 3, seconds=seconds),)) for seconds in (2.0, 0.5))
    assert Sample.of(unit("a"), "strict", 0, fast, off).ratio == 4.0
    assert Sample.of(unit("a"), "off", 0, off, off).ratio is None


def test_a_loose_setting_has_a_ratio_to_strict_on_the_same_unit() -> None:
    off, strict, fly = (Group((answer(1, 2, 3, seconds=seconds),)) for seconds in (4.0, 2.0, 0.5))
    found = Sample.of(unit("a"), "fly", 0, fly, off, strict=strict)
    assert (found.ratio, found.strict_ratio) == (8.0, 4.0)
    assert Sample.of(unit("a"), "strict", 0, strict, off).strict_ratio is None


def test_the_mean_over_categories_weighs_each_alike() -> None:
    ratios = {"x/a": [1.0, 1.2, 5.0], "x/b": [2.0], "y": [4.0]}
    rows = summarise([sample(name, "strict", one) for name, values in ratios.items() for one in values])
    means = {row.group: row.category_mean for row in rows}
    assert means == {"x/a": None, "x/b": None, "y": None, "x": pytest.approx(1.6), "all": pytest.approx(7.2 / 3)}


def test_answers_are_compared_one_by_one() -> None:
    off = Group((answer(1, 2, 3, seconds=1.0), answer(4, 5, 6, seconds=1.0)))
    other = Group((answer(1, 2, 3, seconds=1.0), answer(4, 5, 7, seconds=1.0)))
    assert Sample.of(unit("a", 2), "fly", 0, other, off).differing == 1


def sample(category: str, setting: str, ratio: float | None, clients: int = 1, **figures: int) -> Sample:
    names = tuple(f"{category}/{i}" for i in range(clients))
    speculated = Speculated(**{"loosened": {}, **figures})  # type: ignore[arg-type]
    return Sample(category, names, clients, setting, 0, 8, 2.0, 1.5, 0.5, 1.0, None, ratio, 0, speculated)


def test_a_summary_tells_median_mean_and_extremes_by_category_and_setting() -> None:
    ratios = (1.0, 2.0, 6.0)
    rows = summarise([sample("a", "off", None), *(sample("a", "strict", ratio) for ratio in ratios)])
    assert [(row.group, row.setting, row.samples) for row in rows] == [("a", "off", 1), ("a", "strict", 3)]
    assert rows[0].ratio is None
    assert rows[1].ratio == Spread(median=2.0, mean=3.0, min=1.0, max=6.0)


def test_categories_data_sets_and_all_have_rows_where_they_differ() -> None:
    categories = ("humaneval", "spec-bench/qa", "spec-bench/writing", "own/only")
    rows = summarise([sample(category, "strict", 1.0) for category in categories])
    assert [row.group for row in rows] == [*sorted(categories), "spec-bench", "all"]
    assert {row.group: row.samples for row in rows}["spec-bench"] == 2
    assert {row.group: row.samples for row in rows}["all"] == 4
    assert [row.group for row in summarise([sample("humaneval", "strict", 1.0)])] == ["humaneval"]


def test_clients_are_kept_apart_and_their_answers_counted() -> None:
    rows = summarise([sample("a", "strict", 1.0), sample("mixed", "strict", 0.5, clients=4)])
    assert [(row.concurrency, row.group, row.answers) for row in rows] == [(1, "a", 1), (4, "mixed", 4)]


figures = st.builds(
    Speculated,
    rounds=st.integers(0, 50),
    round_tokens=st.integers(0, 500),
    draft_tokens=st.integers(0, 500),
    accepted_tokens=st.integers(0, 500),
    loosened=st.dictionaries(st.sampled_from(["deferred", "calibrated", "lenient"]), st.integers(0, 9)),
)


@given(st.lists(figures, max_size=6))
def test_speculation_figures_add_up(parts: list[Speculated]) -> None:
    total = Speculated.total(parts)
    assert total.rounds == sum(part.rounds for part in parts)
    for rule in ("deferred", "calibrated", "lenient"):
        assert total.loosened.get(rule, 0) == sum(part.loosened.get(rule, 0) for part in parts)
    assert (total.tau is None) == (total.rounds == 0)
    assert total.tau is None or total.tau == total.round_tokens / total.rounds


def test_a_servers_report_gives_the_same_figures() -> None:
    report = {
        "rounds": 3,
        "mean_accepted_length": 4.3333,
        "draft_tokens": 30,
        "accepted_tokens": 10,
        "loosened_tokens": {"deferred": 2, "calibrated": 0},
    }
    found = Speculated.from_report(report)
    assert found == Speculated(3, 13, 30, 10, {"deferred": 2, "calibrated": 0})
    assert found.acceptance == 10 / 30
    assert Speculated.from_report({**report, "rounds": 0, "mean_accepted_length": None}).tau is None
