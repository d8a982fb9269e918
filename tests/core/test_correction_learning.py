"""A memory that counts while serving: when counts show, and that none is lost or doubled on its way to a store."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from core.correction_learning import LearningMemory
from core.correction_memory import CorrectionMemory
from core.correction_table import MemorySnapshot, pair_key
from core.verifiers.params import CsdParams
from tests.tiny import Driver, make_request, make_runtime, noisy_copy, random_model, random_prompt

PAIR, OTHER = (1, 2), (3, 4)
KEY, OTHER_KEY = pair_key(*PAIR), pair_key(*OTHER)


def learning(cap: int = 1000) -> LearningMemory:
    known = CorrectionMemory("T", "D")
    for _ in range(5):
        known.record("model", *PAIR)
    known.merge_round()
    return LearningMemory(known, cap)


def test_it_begins_with_what_was_known_and_learns_between_rounds() -> None:
    memory = learning()
    during = memory.snapshot("multilevel")
    memory.learn("multilevel", [PAIR, OTHER])
    assert memory.snapshot("multilevel") is during
    memory.merge_round()
    after = memory.snapshot("multilevel")
    assert (during.count(*PAIR), after.count(*PAIR), after.count(*OTHER)) == (5, 6, 1)


def test_what_is_drained_stays_visible_and_is_drained_once() -> None:
    memory = learning()
    memory.learn("model", [OTHER])
    assert memory.drain() == {}, "a round has not ended yet"
    memory.merge_round()
    assert memory.drain() == {"model": {OTHER_KEY: 1}}
    assert memory.drain() == {}
    assert memory.snapshot("model").count(*OTHER) == 1


def test_offered_sums_take_effect_between_rounds_with_what_they_lack() -> None:
    memory = learning()
    memory.learn("model", [OTHER])
    memory.merge_round()
    memory.drain()
    memory.learn("model", [OTHER])
    memory.merge_round()
    memory.offer({"model": MemorySnapshot(recent={KEY: 50, OTHER_KEY: 1}, calibrated_tokens=7).fold()})
    assert memory.snapshot("model").count(*PAIR) == 5
    assert memory.drain() == {}, "the sums that wait would lack it"
    memory.learn("model", [OTHER])
    memory.merge_round()
    table = memory.snapshot("model")
    assert (table.count(*PAIR), table.count(*OTHER), table.calibrated_tokens) == (50, 3, 7)
    assert memory.drain() == {"model": {OTHER_KEY: 2}}


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(["learn", "round", "sync", "pull fails"])),
        max_size=40,
    )
)
def test_two_servers_with_one_store_lose_nothing_and_end_up_with_the_same_sums(steps: list[tuple[int, str]]) -> None:
    store: Counter[int] = Counter()
    servers = [LearningMemory(CorrectionMemory("T", "D"), 1000) for _ in range(2)]
    learned = 0

    def sync(memory: LearningMemory, pull: bool = True) -> None:
        store.update(memory.drain().get("model", {}))
        if pull:
            memory.offer({"model": MemorySnapshot(recent=dict(store)).fold()})

    for index, step in steps:
        memory = servers[index]
        if step == "learn":
            memory.learn("model", [PAIR])
            learned += 1
        elif step == "round":
            memory.merge_round()
        else:
            sync(memory, pull=step == "sync")
    for _ in range(2):
        for memory in servers:
            memory.merge_round()
            sync(memory)
            memory.merge_round()
            sync(memory)
    for memory in servers:
        memory.merge_round()
        assert memory.snapshot("model").count(*PAIR) == learned == store[KEY]


def test_beyond_the_cap_the_least_frequent_leave() -> None:
    memory = learning(cap=2)
    for token in range(20):
        memory.learn("model", [(100 + token, 7)] * (1 + token))
        memory.merge_round()
    table = memory.snapshot("model").fold(2)
    assert [key >> 32 for key in table.keys.tolist()] == [118, 119]


def test_rounds_teach_it_and_a_static_memory_stays_as_it_is() -> None:
    """With a wide gate and nothing known, csd's first round rejects as strict does, and each rejection is learned."""
    target = random_model(1)
    runtime = make_runtime(target, noisy_copy(target))
    params = CsdParams(ratio=1e-9, frequency_threshold=1e9)
    request = make_request(
        random_prompt(9, 3), verifier=params, drafter="model", num_draft_tokens=4, max_tokens=40, ignore_eos=True
    )
    static = Driver(runtime)
    static.run([request])
    assert runtime.memory.snapshot("model").num_pairs == 0
    corrected = Counter(item.corrected for result in static.rounds for item in result.items if item.corrected)
    runtime.memory = memory = LearningMemory(CorrectionMemory(), 1000)
    Driver(runtime).run([request])
    memory.merge_round()
    learned = {(key >> 32, key & 0xFFFFFFFF): count for key, count in memory.drain()["model"].items()}
    controls = runtime.control_ids
    assert learned == {pair: n for pair, n in corrected.items() if not controls.intersection(pair)} != {}
