"""The Batcher's policy on the real pool: budgets, preemption, fairness, progress."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.drafters.model import DraftReach
from core.sequence import GenerationRequest, SequenceState
from tests.scheduler.floor import Floor, limits, request


def test_prompts_are_fed_in_chunks_first_come_first_served() -> None:
    floor = Floor(limits=limits(prefill_chunk=32, round_tokens=64))
    floor.add(request("a", prompt=40))
    floor.add(request("b", prompt=20))
    first, second = floor.round(), floor.round()
    assert {name: item.num_tokens for name, item in first.items()} == {"a": 32}
    assert {name: item.num_tokens for name, item in second.items()} == {"a": 8, "b": 20}
    assert floor.jobs["a"].sequence.output_len == floor.jobs["b"].sequence.output_len == 1


def test_decoding_goes_on_beside_a_long_prompt() -> None:
    floor = Floor(limits=limits(prefill_chunk=16, round_tokens=20))
    floor.add(request("a", "fly", 4, max_tokens=60))
    floor.round()
    floor.add(request("long", prompt=100))
    while not floor.jobs["long"].sequence.output_len:
        items = floor.round()
        assert items["a"].num_drafts == 4
        assert items["long"].num_tokens > 0


def test_running_limit_and_order_of_admission() -> None:
    floor = Floor(limits=limits(max_running=2))
    for name, priority in [("a", 5), ("b", 0), ("c", 1)]:
        floor.add(request(name, priority=priority, max_tokens=3))
    assert list(floor.round()) == ["b", "c"]
    floor.run()
    assert floor.finished == ["b", "c", "a"]


def test_all_rows_taken_by_decoding_still_lets_a_prompt_in_every_other_round() -> None:
    floor = Floor(limits=limits(max_running=50, round_tokens=16, prefill_chunk=16))
    for n in range(16):
        floor.add(request(str(n), prompt=1, max_tokens=400))
    while any(not job.sequence.output_len for job in floor.jobs.values()):
        floor.round()
    before = {name: job.sequence.output_len for name, job in floor.jobs.items()}
    floor.add(request("new", prompt=30, max_tokens=2))
    fed = [item.num_tokens for _ in range(10) if (item := floor.round().get("new"))]
    assert fed == [8, 8, 8, 6, 1]
    progress = [floor.jobs[name].sequence.output_len - length for name, length in before.items()]
    assert max(progress) - min(progress) <= 1
    assert min(progress) >= 7


def test_one_whole_loose_block_a_round_does_not_starve_a_prompt() -> None:
    floor = Floor(limits=limits(round_tokens=16, prefill_chunk=16))
    floor.add(request("loose", "fly", 15, prompt=1, max_tokens=300))
    floor.round()
    floor.add(request("new", prompt=30, max_tokens=2))
    rounds = 0
    while "new" not in floor.finished:
        floor.round()
        rounds += 1
    assert rounds <= 12


def test_decoders_take_turns_when_rows_are_short() -> None:
    floor = Floor(limits=limits(round_tokens=10, prefill_chunk=10))
    for n, (verifier, drafts) in enumerate([("fly", 9), ("fly", 4), ("off", 0), ("strict", 5), ("fly", 6)]):
        floor.add(request(str(n), verifier, drafts, prompt=2, max_tokens=150))
    turns = dict.fromkeys(floor.jobs, 0)
    for _ in range(60):
        for name, item in floor.round().items():
            turns[name] += item.sequence.output_len > 1
    assert min(turns.values()) >= 12


def test_the_least_urgent_is_preempted_first_then_the_latest() -> None:
    floor = Floor(num_blocks=15, block_size=4, limits=limits(prefill_chunk=64))
    for name, priority in [("a", 0), ("low", 1), ("b", 0), ("c", 0)]:
        floor.add(request(name, prompt=8, max_tokens=48 if name == "a" else 24, priority=priority))
    preempted: list[str] = []
    while "a" not in floor.finished:
        before = {name: job.sequence.counters.preemptions for name, job in floor.jobs.items()}
        floor.round()
        preempted += [n for n, job in floor.jobs.items() if job.sequence.counters.preemptions > before[n]]
    assert preempted[:2] == ["low", "c"]
    assert "a" not in preempted
    assert floor.totals.preemptions == len(preempted)
    floor.run()


def test_the_most_urgent_takes_the_least_urgent_ones_blocks() -> None:
    floor = Floor(num_blocks=9, block_size=4, limits=limits(prefill_chunk=64))
    for name, priority in [("a", -5), ("b", 0), ("low", 1)]:
        floor.add(request(name, "fly", 5, prompt=7, max_tokens=8, priority=priority))
    floor.round()
    assert [job.request_id for job in floor.batcher.running] == ["a", "b"]  # low would not fit beside their drafts
    floor = Floor(num_blocks=9, block_size=4, limits=limits(prefill_chunk=64))
    start(
        floor,
        request("a", "fly", 20, prompt=7, max_tokens=8, priority=-5),
        request("b", prompt=7, max_tokens=8),
        request("low", prompt=7, max_tokens=8, priority=1),
    )
    floor.round()
    items = floor.round()
    assert items["a"].num_drafts == 20
    assert floor.jobs["low"].sequence.counters.preemptions == 1
    assert floor.jobs["b"].sequence.counters.preemptions == 0


def test_a_newcomer_leaves_the_running_ones_room_for_their_next_block() -> None:
    floor = Floor(num_blocks=14, block_size=4, limits=limits(prefill_chunk=64))
    floor.add(request("a", "fly", 20, prompt=7, max_tokens=8))
    floor.round()
    floor.add(request("b", prompt=30, max_tokens=1))
    assert list(floor.round()) == ["a"]
    floor.run()
    assert floor.totals.preemptions == 0


def start(floor: Floor, *asked: GenerationRequest) -> None:
    """Make them run at once, whether or not admission would have let them in together."""
    for entry in asked:
        job = floor.add(entry)
        floor.waiting.take_first()
        floor.batcher.running[job] = None


@pytest.mark.parametrize("num_blocks", [7, 8, 9, 10, 11])
def test_a_loose_sequence_resumed_into_a_full_pool_keeps_its_block_whole(num_blocks: int) -> None:
    floor = Floor(num_blocks=num_blocks, block_size=4, limits=limits(prefill_chunk=64))
    start(floor, request("elder", prompt=16, max_tokens=8), request("loose", "fly", 11, prompt=4, max_tokens=9))
    resumed = floor.jobs["loose"].sequence
    resumed.tokens.extend([7] * 6)  # it was preempted after six tokens and has all ten to feed again
    floor.run()
    assert floor.boundaries["loose"][0] == (6, 11)
    assert all(drafts == 11 for _, drafts in floor.boundaries["loose"])


def test_the_most_urgent_runs_alone_when_all_in_turn_lack_blocks() -> None:
    floor = Floor(num_blocks=12, block_size=4, limits=limits(prefill_chunk=12, round_tokens=12))
    start(floor, request("a", "fly", 11, prompt=30, max_tokens=18), request("b", "fly", 11, prompt=4, max_tokens=6))
    floor.run()
    assert floor.finished == ["a", "b"]


def test_a_preempted_sequence_returns_from_its_own_cached_blocks_and_counts_as_waiting() -> None:
    floor = Floor(num_blocks=9, block_size=4, limits=limits(prefill_chunk=64))
    floor.add(request("a", prompt=12, max_tokens=20))
    floor.add(request("b", prompt=11, max_tokens=8))
    while not floor.totals.preemptions:
        floor.round()
    b = floor.jobs["b"].sequence
    assert b.state is SequenceState.WAITING
    assert b.blocks == []
    assert b.target_tokens == 0
    assert len(floor.waiting) == 1
    floor.run()
    assert b.counters.cached_prompt_tokens == 0  # what it finds of its own on its return is no hit


def test_short_pool_cuts_strict_drafts_before_it_preempts() -> None:
    floor = Floor(num_blocks=8, block_size=4, limits=limits(prefill_chunk=64))
    floor.add(request("a", "strict", 12, prompt=13, max_tokens=4))
    floor.add(request("b", "strict", 12, prompt=13, max_tokens=4))
    floor.run()
    assert floor.totals.preemptions == 0


def test_a_loose_sequence_without_blocks_waits_with_its_own() -> None:
    floor = Floor(num_blocks=10, block_size=4, limits=limits(prefill_chunk=64))
    floor.add(request("a", "off", 0, prompt=14, max_tokens=18))
    floor.add(request("b", "fly", 7, prompt=9, max_tokens=15))
    floor.run()
    alone = Floor(num_blocks=100, block_size=4)
    alone.add(request("b", "fly", 7, prompt=9, max_tokens=15))
    alone.run()
    assert floor.boundaries["b"] == alone.boundaries["b"]


def test_prefix_hits_are_those_of_the_first_admission() -> None:
    floor = Floor()
    first = request("a", prompt=18, max_tokens=2)
    floor.add(first)
    floor.run()
    again = floor.add(replace(first, request_id="b"))
    floor.run()
    assert again.sequence.counters.cached_prompt_tokens == 16


def test_many_prompts_larger_than_half_the_pool_go_one_by_one() -> None:
    floor = Floor(num_blocks=10, block_size=4, limits=limits(prefill_chunk=8))
    for n in range(4):
        floor.add(request(str(n), prompt=26, max_tokens=6))
    floor.run()
    assert floor.finished == ["0", "1", "2", "3"]
    assert floor.totals.preemptions == 0


def test_a_sequence_may_fill_the_whole_pool() -> None:
    floor = Floor(num_blocks=10, block_size=4)
    assert floor.batcher.max_context == 40
    floor.add(request("a", "fly", 6, prompt=10, max_tokens=30))
    floor.add(request("b", "strict", 6, prompt=10, max_tokens=30))
    floor.run()


REQUESTS = st.tuples(
    st.sampled_from([("off", 0), ("strict", 3), ("strict", 12), ("fly", 5), ("fly", 11)]),
    st.integers(1, 30),  # prompt
    st.integers(1, 25),  # max_tokens
    st.integers(-1, 1),  # priority
    st.integers(0, 10),  # rounds before it comes
    st.sampled_from(["model", "prompt_lookup"]),
    st.sampled_from(["", "shared"]),  # whose text it begins with
)


@example(  # a newcomer once shared blocks that an elder's drafting was about to fill in the same round
    asked=[
        (("off", 0), 1, 1, 0, 0, "model", ""),
        (("strict", 12), 4, 3, 0, 0, "model", "shared"),
        (("strict", 3), 6, 1, 0, 0, "model", "shared"),
    ],
    num_blocks=17,
    round_tokens=12,
    prefill_chunk=1,
    max_running=2,
)
@settings(max_examples=150, deadline=None)
@given(
    asked=st.lists(REQUESTS, min_size=1, max_size=8),
    num_blocks=st.integers(17, 40),  # of 4 positions: the longest sequence with its block just fits
    round_tokens=st.integers(12, 40),
    prefill_chunk=st.integers(1, 12),
    max_running=st.integers(1, 8),
)
def test_any_load_finishes_within_budgets_and_never_moves_a_loose_block(
    asked: list[tuple[tuple[str, int], int, int, int, int, str, str]],
    num_blocks: int,
    round_tokens: int,
    prefill_chunk: int,
    max_running: int,
) -> None:
    """Floor.check holds in every round; each loose sequence's blocks end where they end when it is alone."""
    bounds = {"max_running": max_running, "prefill_chunk": prefill_chunk, "round_tokens": round_tokens}
    floor = Floor(num_blocks=num_blocks, limits=limits(**bounds, max_context=68), reach=DraftReach(1000))
    coming: list[tuple[int, GenerationRequest]] = []
    for n, ((verifier, drafts), prompt, max_tokens, priority, delay, drafter, text) in enumerate(asked):
        coming.append((delay, request(f"{n}", verifier, drafts, prompt, max_tokens, priority, drafter, text)))
    for clock in range(11):
        for delay, entry in coming:
            if delay == clock:
                floor.add(entry, at=float(clock))
        if len(floor.finished) < len(floor.jobs):
            floor.round()
    floor.run()
    for _, entry in coming:
        if entry.verifier.type == "fly":
            alone = Floor(limits=limits(max_context=68), reach=DraftReach(1000))
            alone.add(entry)
            alone.run()
            assert floor.boundaries.get(entry.request_id) == alone.boundaries.get(entry.request_id)
