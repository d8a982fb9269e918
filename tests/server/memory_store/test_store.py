"""A memory in a database: what is counted there is what was added, by whomever and on whichever database."""

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.correction_memory import CorrectionMemory, MemoryFileError
from core.correction_origin import MemoryOrigin, sample_id
from core.correction_table import MemorySnapshot, pair_key
from server.memory_store import MemoryStore, rows
from server.memory_store.place import MemoryPlace
from tests.server.memory_store.conftest import both_databases

COUNTS = st.dictionaries(st.integers(0, 30), st.integers(1, 9), max_size=8)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), COUNTS),
        st.tuples(st.just("merge"), COUNTS),
        st.tuples(st.just("pack"), st.none()),
        st.tuples(st.just("prune"), st.tuples(st.integers(1, 6), st.integers(1, 4))),
        st.tuples(st.just("pull"), st.none()),
    ),
    max_size=8,
)


def held(table: MemorySnapshot) -> dict[int, int]:
    folded = table.fold()
    return dict(zip(folded.keys.tolist(), folded.occurrences.tolist(), strict=True))


def memory_of(counts: dict[int, int], target: str = "T", samples: tuple[str, ...] = ()) -> CorrectionMemory:
    table = MemorySnapshot(recent=counts, calibrated_samples=len(samples), calibrated_tokens=10 * len(samples))
    ids = np.array(sorted(map(sample_id, samples)), np.int64)
    return CorrectionMemory(target, "D", tables={"model": table.fold()}, origin=MemoryOrigin(({"began": "x"},), ids))


def walk(url: str, steps: list[tuple[str, object]], namespace: str) -> None:
    """Run the steps against a dict; pull, incrementally and afresh, and compare."""
    store = MemoryStore(url, namespace)
    store.begin("T", "D")
    expected: Counter[int] = Counter()
    numbers = itertools.count(1)
    pulled = store.pull()
    for step, value in steps:
        if step == "add":
            store.add({"model": value}, "walker", next(numbers))
            expected.update(value)
        elif step == "merge":
            store.merge(memory_of(value))
            expected.update(value)
        elif step == "pack":
            store.pack()
        elif step == "prune":
            cap, least = value
            before = len(expected)
            ranked = sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))[:cap]
            expected = Counter({key: count for key, count in ranked if count >= least})
            assert store.prune(cap, least) == before - len(expected)
        else:
            pulled = store.pull(pulled)
            assert held(pulled.tables.get("model", MemorySnapshot())) == dict(expected)
    for read in (store.pull(pulled), store.pull()):
        assert held(read.tables.get("model", MemorySnapshot())) == dict(expected)
    store.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(steps=STEPS, number=st.integers(0, 1 << 60))
def test_it_holds_what_was_added_less_what_was_pruned(url: str, steps: list[tuple[str, object]], number: int) -> None:
    walk(url, steps, f"walk-{number}-{hash(str(steps))}")


@both_databases
def test_both_databases_go_the_same_way(url: str) -> None:
    some = {pair_key(7, 8): 2, pair_key(7, 9): 5, pair_key((1 << 31) - 1, 0): 1}
    steps = [("add", some), ("merge", some), ("pull", None), ("add", {5: 1, pair_key(7, 9): 3}), ("pull", None)]
    walk(url, [*steps, ("pack", None), ("add", some), ("pull", None), ("prune", (3, 2)), ("pull", None)], "steps")


def test_adding_on_a_database_whose_upsert_is_unknown_gives_the_same(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_add", rows._add_portably)
    monkeypatch.setattr(rows, "_ASKED", 2)
    steps = [
        ("add", {1: 1, 2: 2, 3: 3}),
        ("add", {3: 1, 4: 9, 1: 5}),
        ("pull", None),
        ("merge", {9: 1}),
        ("add", {9: 1}),
    ]
    walk(url, steps, "portable")


@both_databases
def test_a_sample_counts_once_with_all_it_gave(url: str) -> None:
    store = MemoryStore(url)
    store.begin("T", "D")
    run = store.begin_run({"began": "1", "drafter": "multilevel"})
    assert store.count_sample(run, 5, {"model": {1: 2}, "prompt_lookup": {}}, 40)
    assert not store.count_sample(run, 5, {"model": {1: 2}, "prompt_lookup": {}}, 40)
    assert store.count_sample(run, 6, {"model": {1: 1}, "prompt_lookup": {3: 1}}, 2)
    assert store.begin_run({"began": "2", "drafter": "multilevel"}) == run, "the same run goes on"
    assert store.begin_run({"began": "2", "drafter": "model"}) != run
    assert store.known_samples([4, 5, 6]) == {5, 6}
    memory = store.load()
    model, lookup = memory.snapshot("model"), memory.snapshot("prompt_lookup")
    assert (held(model), model.calibrated_samples, model.calibrated_tokens) == ({1: 3}, 2, 42)
    assert (held(lookup), lookup.calibrated_samples, lookup.calibrated_tokens) == ({3: 1}, 2, 42)
    assert memory.origin.samples.tolist() == [5, 6]
    assert memory.origin.runs[0] == {"began": "1", "drafter": "multilevel", "samples": 2, "tokens": 42}


@both_databases
def test_what_a_writer_sends_again_counts_once(url: str) -> None:
    store = MemoryStore(url)
    store.begin("T", "D")
    for writer, number in (("a", 1), ("a", 1), ("b", 1), ("a", 2), ("a", 1), ("b", 1)):
        store.add({"model": {1: 1}}, writer, number)
    assert held(store.pull().tables["model"]) == {1: 3}


@both_databases
def test_namespaces_are_apart_and_of_one_pair_of_models_each(url: str) -> None:
    ours, theirs = MemoryStore(url, "ours"), MemoryStore(url, "theirs")
    ours.begin("T", "D")
    theirs.begin("T2", None)
    ours.add({"model": {1: 1}}, "w", 1)
    assert theirs.pull().tables == {}
    with pytest.raises(MemoryFileError, match=r"of target 'T', draft 'D', not target 'T2'"):
        ours.begin("T2", None)
    with pytest.raises(MemoryFileError, match="not target 'X'"):
        ours.merge(memory_of({1: 1}, target="X"))
    assert held(ours.pull().tables["model"]) == {1: 1}
    with pytest.raises(MemoryFileError, match="no correction memory in namespace 'third'"):
        MemoryStore(url, "third").load()


@both_databases
def test_servers_that_start_at_once_find_one_memory(url: str) -> None:
    stores = [MemoryStore(url) for _ in range(6)]
    together = threading.Barrier(len(stores))

    def begin(store: MemoryStore) -> int:
        together.wait()
        return store.begin("T", "D").id

    with ThreadPoolExecutor(len(stores)) as pool:
        assert len(set(pool.map(begin, stores))) == 1


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    with pytest.raises(MemoryFileError, match="no correction memory in namespace 'default' of sqlite"):
        MemoryStore(url).load()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:///%s/file.txt", "cannot use .*not a database"),
        ("sqlite:///%s/no/folder/x.db", "cannot use .*unable to open"),
        ("oracle+none://x", "SQLAlchemy knows"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/x?connect_timeout=1", r"cannot use .*u:\*\*\*@127.0.0.1"),
    ],
)
def test_what_is_wrong_with_a_database_is_said_without_its_password(tmp_path: Path, url: str, message: str) -> None:
    (tmp_path / "file.txt").write_text("not a database at all, but text that is long enough to be read as one" * 99)
    with pytest.raises(MemoryFileError, match=message) as caught:
        MemoryStore(url.replace("%s", str(tmp_path))).begin("T", "D")
    assert "secret" not in str(caught.value)


def test_places_are_files_or_databases_and_memories_move_between_them(tmp_path: Path, url: str) -> None:
    file, database = MemoryPlace.of(f"{tmp_path}/m.npz"), MemoryPlace.of(url, "n")
    assert not file.exists()
    assert not database.exists()
    database.add(memory_of({1: 2, 3: 4}, samples=("a", "b")))
    file.add(database.load())
    for place in (file, database):
        place.add(memory_of({3: 1}, samples=("b", "c")))
        memory = place.load()
        assert held(memory.snapshot("model")) == {1: 2, 3: 5}
        assert memory.origin.samples.tolist() == sorted(map(sample_id, "abc"))
        assert memory.snapshot("model").calibrated_samples == 4
        assert place.exists()
        assert place.prune(None, 3) == 1
        assert held(place.load().snapshot("model")) == {3: 5}
