"""The correction memory: what it counts, when counts become visible, its cap and its file."""

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core import correction_table
from core.correction_file import MemoryContents, read_memory, write_memory
from core.correction_memory import CorrectionMemory, MemoryFileError, MemorySnapshot
from core.correction_origin import MemoryOrigin, sample_id
from core.drafters.base import FREE_DRAFTERS

TOKENS = st.one_of(st.integers(0, 3), st.sampled_from([128_255, (1 << 31) - 1]))
PAIRS = st.dictionaries(st.tuples(TOKENS, TOKENS), st.integers(1, 9), max_size=12)


def memory_of(pairs: dict[tuple[int, int], int], drafter: str = "model", **kwargs) -> CorrectionMemory:
    memory = CorrectionMemory(target="T", draft="D", **kwargs)
    for (draft_token, target_token), count in pairs.items():
        for _ in range(count):
            memory.record(drafter, draft_token, target_token)
    memory.merge_round()
    return memory


def contents(table: MemorySnapshot) -> dict[tuple[int, int], int]:
    """What a table holds, read through its arrays."""
    folded = table.fold()
    return {
        (key >> 32, key & 0xFFFFFFFF): count
        for key, count in zip(folded.keys.tolist(), folded.occurrences.tolist(), strict=True)
    }


@given(pairs=PAIRS, recent_limit=st.sampled_from([0, 2, 4096]))
def test_counts_are_what_was_recorded(pairs: dict[tuple[int, int], int], recent_limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(correction_table, "RECENT_LIMIT", recent_limit)
        memory = CorrectionMemory()
        for (draft_token, target_token), count in pairs.items():
            for _ in range(count):  # one round each, so that pairs reach the arrays at different times
                memory.record("model", draft_token, target_token)
                memory.merge_round()
    table = memory.snapshot("model")
    asked = list(itertools.product([0, 1, 2, 3, 4, 128_255, (1 << 31) - 1], repeat=2))
    expected = [pairs.get(pair, 0) for pair in asked]
    assert [table.count(*pair) for pair in asked] == expected
    assert table.num_pairs == len(pairs)
    assert contents(table) == pairs


def test_an_empty_table_answers_zero() -> None:
    table = CorrectionMemory().snapshot("model")
    assert table.count(1, 2) == 0
    assert table.num_pairs == table.calibrated_tokens == 0


def test_a_snapshot_and_its_round_see_nothing_of_what_the_round_records() -> None:
    memory = memory_of({(1, 2): 3})
    before = memory.snapshot("model")
    memory.record("model", 1, 2)
    memory.observe("model", samples=1, tokens=50)
    assert memory.snapshot("model").count(1, 2) == 3
    memory.merge_round()
    after = memory.snapshot("model")
    assert (before.count(1, 2), before.calibrated_tokens) == (3, 0)
    assert (after.count(1, 2), after.calibrated_tokens, after.calibrated_samples) == (4, 50, 1)
    memory.merge_round()
    again = memory.snapshot("model")
    assert (again.count(1, 2), again.calibrated_tokens, again.calibrated_samples) == (4, 50, 1)


@given(
    rounds=st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=6), max_size=4), data=st.data()
)
def test_order_inside_a_round_changes_nothing(rounds: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    memories = []
    for order in (lambda pairs: pairs, lambda pairs: data.draw(st.permutations(pairs))):
        memory = CorrectionMemory(cap=2)
        for pairs in rounds:
            for pair in order(pairs):
                memory.record("model", *pair)
            memory.merge_round()
        memories.append(contents(memory.snapshot("model")))
    assert memories[0] == memories[1]


def test_tables_per_proposer_with_multilevel_in_the_models() -> None:
    memory = CorrectionMemory()
    memory.record("multilevel", 1, 2)
    memory.record("prompt_lookup", 3, 4)
    memory.merge_round()
    assert contents(memory.snapshot("model")) == contents(memory.snapshot("multilevel")) == {(1, 2): 1}
    assert contents(memory.snapshot("prompt_lookup")) == {(3, 4): 1}
    assert memory.snapshot("none").num_pairs == 0
    with pytest.raises(ValueError, match="unknown drafter 'eagle'"):
        memory.snapshot("eagle")
    with pytest.raises(ValueError, match="unknown drafter"):
        memory.record("none", 1, 2)


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1), (1 << 31, 0), (0, 1 << 31)])
def test_ids_that_are_no_tokens_are_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="token ids"):
        CorrectionMemory().record("model", *pair)


def test_tables_cannot_be_written_to() -> None:
    table = memory_of({(1, 2): 3}).snapshot("model").fold()
    with pytest.raises(ValueError, match="read-only"):
        table.occurrences[0] = 9


def ids(*texts: str) -> np.ndarray:
    return np.array(sorted(map(sample_id, texts)), np.int64)


def test_the_same_text_is_the_same_sample_and_fits_a_databases_integer() -> None:
    assert sample_id("prompt") == sample_id("prompt") != sample_id("prompt ")
    assert all(0 <= sample_id(text) < 1 << 63 for text in ("", "\ud800", "naïve", "x" * 9999))


# ---- cap and merge


def slow_trim(pairs: dict[tuple[int, int], int], cap: int) -> dict[tuple[int, int], int]:
    return dict(sorted(pairs.items(), key=lambda entry: (-entry[1], entry[0]))[:cap])


@given(pairs=PAIRS, cap=st.integers(1, 12))
def test_beyond_the_cap_the_least_frequent_leave_first(pairs: dict[tuple[int, int], int], cap: int) -> None:
    table = memory_of(pairs).snapshot("model")
    assert contents(table.fold(cap)) == slow_trim(pairs, cap)


def test_equally_frequent_pairs_leave_from_the_largest_ids_down() -> None:
    memory = memory_of({(9, 1): 2, (1, 9): 2, (1, 2): 2, (5, 5): 1}, cap=2)
    assert contents(memory.snapshot("model")) == {(1, 2): 2, (1, 9): 2}


def test_recording_for_long_never_holds_much_more_than_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correction_table, "RECENT_LIMIT", 5)
    memory = CorrectionMemory(cap=20)
    for token in range(300):
        for _ in range(3 if token < 20 else 1):
            memory.record("model", token, 0)
        memory.merge_round()
        assert memory.snapshot("model").num_pairs <= 25
    assert contents(memory.snapshot("model").fold(20)) == {(token, 0): 3 for token in range(20)}


@given(one=PAIRS, two=PAIRS)
def test_merging_two_memories_adds_their_counts(
    one: dict[tuple[int, int], int], two: dict[tuple[int, int], int]
) -> None:
    first, second = memory_of(one), memory_of(two)
    first.observe("model", samples=2, tokens=100)
    second.observe("model", samples=3, tokens=11)
    second.record("prompt_lookup", 7, 8)
    first.merge(second)
    table = first.snapshot("model")
    assert contents(table) == dict(Counter(one) + Counter(two))
    assert (table.calibrated_samples, table.calibrated_tokens) == (5, 111)
    assert first.snapshot("prompt_lookup").count(7, 8) == 1


def test_merging_keeps_what_either_was_made_of_once() -> None:
    run, other = {"prompts": ["a"]}, {"prompts": ["b"]}
    first = CorrectionMemory("T", "D", origin=MemoryOrigin((run,), ids("one", "two")))
    second = CorrectionMemory("T", "D", origin=MemoryOrigin((run, other), ids("two", "three")))
    assert first.origin.shared(second.origin) == 1
    first.merge(second)
    assert first.origin.runs == (run, other)
    assert first.origin.samples.tolist() == ids("one", "two", "three").tolist()


def test_merging_trims_to_the_cap() -> None:
    first = memory_of({(1, 1): 2, (2, 2): 1}, cap=2)
    first.merge(memory_of({(2, 2): 4, (3, 3): 3}))
    assert contents(first.snapshot("model")) == {(2, 2): 5, (3, 3): 3}


# ---- whose memory it is


def test_a_memory_of_other_models_is_refused() -> None:
    memory = memory_of({(1, 2): 1})
    memory.check_models("T", "D")
    memory.check_models("T", None)
    with pytest.raises(MemoryFileError, match="of target 'T', not 'other'"):
        memory.check_models("other", "D")
    with pytest.raises(MemoryFileError, match="of draft 'D', not 'other'"):
        memory.check_models("T", "other")
    memory_of({(1, 2): 1}, drafter="prompt_lookup").check_models("T", "other")


@pytest.mark.parametrize(("target", "draft"), [("other", "D"), ("T", "other"), ("T", None)])
def test_merging_memories_of_other_models_is_refused(target: str, draft: str | None) -> None:
    mine = CorrectionMemory(target=target, draft=draft)
    with pytest.raises(MemoryFileError):
        mine.merge(memory_of({(1, 2): 1}))
    assert mine.snapshot("model").num_pairs == 0


# ---- the file


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(model=PAIRS, lookup=PAIRS)
def test_a_saved_memory_loads_as_it_was(
    tmp_path: Path, model: dict[tuple[int, int], int], lookup: dict[tuple[int, int], int]
) -> None:
    memory = memory_of(model)
    for pair in lookup:
        memory.record("prompt_lookup", *pair)
    memory.observe("model", samples=4, tokens=1000)
    memory.origin = MemoryOrigin(({"prompts": ["a.jsonl"], "samples": 4},), ids("one", "two"))
    memory.save(tmp_path / "memory.npz")
    loaded = CorrectionMemory.load(tmp_path / "memory.npz")
    assert (loaded.target, loaded.draft, loaded.created) == ("T", "D", memory.created)
    assert loaded.origin.runs == ({"prompts": ["a.jsonl"], "samples": 4},)
    assert loaded.origin.samples.tolist() == sorted([sample_id("one"), sample_id("two")])
    for proposer in ("model", "prompt_lookup"):
        ours, theirs = memory.snapshot(proposer), loaded.snapshot(proposer)
        assert contents(ours) == contents(theirs)
        assert ours.calibrated_samples == theirs.calibrated_samples
        assert ours.calibrated_tokens == theirs.calibrated_tokens
    assert [path.name for path in tmp_path.iterdir()] == ["memory.npz"], "no scratch file is left behind"


def test_a_loaded_memory_goes_on_recording(tmp_path: Path) -> None:
    memory_of({(1, 2): 3}).save(tmp_path / "memory")
    memory = CorrectionMemory.load(tmp_path / "memory")
    memory.record("model", 1, 2)
    memory.record("model", 5, 6)
    memory.merge_round()
    assert contents(memory.snapshot("model")) == {(1, 2): 4, (5, 6): 1}


def test_saving_and_loading_keep_to_the_cap(tmp_path: Path) -> None:
    memory_of({(1, 1): 3, (2, 2): 2, (3, 3): 1}).save(tmp_path / "memory")
    assert contents(CorrectionMemory.load(tmp_path / "memory", cap=2).snapshot("model")) == {(1, 1): 3, (2, 2): 2}


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.npz"
    memory_of({(1, 2): 3}).save(path)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="no space"):
        memory_of({(9, 9): 1}).save(path)
    assert contents(CorrectionMemory.load(path).snapshot("model")) == {(1, 2): 3}
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(MemoryFileError, match="no correction memory at"):
        CorrectionMemory.load(tmp_path / "nothing")
    with pytest.raises(MemoryFileError, match="cannot read"):
        CorrectionMemory.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x80\x04}.", b"{}"])
def test_foreign_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "memory").write_bytes(content)
    with pytest.raises(MemoryFileError, match=str(tmp_path)):
        CorrectionMemory.load(tmp_path / "memory")


def test_foreign_numpy_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", weights=np.zeros(3))
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "pickled.npz", header=np.array([{"a": 1}], dtype=object))
    for name in ("arrays.npz", "array.npy", "pickled.npz"):
        with pytest.raises(MemoryFileError):
            CorrectionMemory.load(tmp_path / name)


SMALL = {(1, 2): 3, (5, 6): 7}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_damaged_byte_is_noticed_or_harmless(tmp_path: Path, where: float, flip: int) -> None:
    path = tmp_path / "memory"
    memory = memory_of(SMALL, created="2026-01-01T00:00:00+00:00")
    memory.save(path)
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= flip
    path.write_bytes(content)
    try:
        loaded = CorrectionMemory.load(path)
    except MemoryFileError:
        return
    assert contents(loaded.snapshot("model")) == SMALL
    assert (loaded.target, loaded.draft, loaded.created) == ("T", "D", memory.created)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    memory_of(SMALL).save(path)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(MemoryFileError):
            CorrectionMemory.load(path)


def rewrite(path: Path, header: dict[str, object] | None = None, **arrays: np.ndarray) -> None:
    """Save a small valid file, then replace parts of it."""
    memory_of(SMALL).save(path)
    with path.open("rb") as file, np.load(file) as archive:
        parts = {name: archive[name] for name in archive.files}
    facts = json.loads(parts["header"].tobytes()) | (header or {})
    parts |= arrays | {"header": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
    with path.open("wb") as file:
        np.savez(file, **parts)


COUNTS = {"samples": 0, "tokens": 0}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"format": "other"}, "no correction memory"),
        ({"version": 2}, "format version 2; this program reads 1"),
        ({"target": 5}, "expected text"),
        ({"draft": []}, "expected text"),
        ({"created": None}, "expected text"),
        ({"tables": []}, "cannot read"),
        ({"runs": {}}, "expected a list of runs"),
        ({"runs": ["2026"]}, "expected an object"),
        ({"tables": {"eagle": COUNTS}}, "cannot read"),
        ({"tables": {"model": {"samples": -1, "tokens": 0}}}, "expected a count"),
        ({"tables": {"model": {"samples": True, "tokens": 0}}}, "expected a count"),
        ({"tables": {"model": {"samples": 1}}}, "cannot read"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, header: dict[str, object], message: str) -> None:
    rewrite(tmp_path / "memory", header)
    with pytest.raises(MemoryFileError, match=message):
        CorrectionMemory.load(tmp_path / "memory")


@pytest.mark.parametrize(
    ("keys", "counts", "message"),
    [
        ([5, 5], [1, 1], "out of order"),
        ([6, 5], [1, 1], "out of order"),
        ([-1, 5], [1, 1], "out of order"),
        ([5, 0xFFFFFFFF], [1, 1], "no token pairs"),
        ([5, 6], [1, 0], "counts outside"),
        ([5, 6], [1, 1 << 60], "counts outside"),
        ([5, 6], [1], "one length"),
        ([5.0, 6.0], [1, 1], "int64"),
        ([[5, 6]], [[1, 1]], "int64"),
    ],
)
def test_tables_that_break_the_format_are_refused(tmp_path: Path, keys: list, counts: list, message: str) -> None:
    rewrite(tmp_path / "memory", model_keys=np.array(keys), model_counts=np.array(counts))
    with pytest.raises(MemoryFileError, match=message):
        CorrectionMemory.load(tmp_path / "memory")


@pytest.mark.parametrize("samples", [[2, 1], [1, 1], [1.0], [[1]]])
def test_samples_that_break_the_format_are_refused(tmp_path: Path, samples: list) -> None:
    rewrite(tmp_path / "memory", samples=np.array(samples))
    with pytest.raises(MemoryFileError, match="samples are not"):
        CorrectionMemory.load(tmp_path / "memory")


def test_tables_of_unknown_proposers_are_refused(tmp_path: Path) -> None:
    nothing = np.zeros(0, np.int64)
    rewrite(tmp_path / "memory", {"tables": {"eagle": COUNTS}}, eagle_keys=nothing, eagle_counts=nothing)
    with pytest.raises(MemoryFileError, match="unknown proposers: eagle"):
        CorrectionMemory.load(tmp_path / "memory")


def test_a_file_holds_only_tables_that_hold_something_and_those_of_two_drafters_are_still_read(tmp_path: Path) -> None:
    """Programs that know no more than `model` and `prompt_lookup` wrote both and refuse any other."""
    memory_of({(1, 2): 3}).save(tmp_path / "new.npz")
    assert set(read_memory(tmp_path / "new.npz").tables) == {"model"}
    tables = {"model": MemorySnapshot(), "prompt_lookup": memory_of({(3, 4): 5}).snapshot("model").fold()}
    write_memory(tmp_path / "old.npz", MemoryContents("T", "D", "2026-01-01", tables, MemoryOrigin()))
    old = CorrectionMemory.load(tmp_path / "old.npz")
    assert old.snapshot("prompt_lookup").count(3, 4) == 5
    assert old.snapshot("token_recycling").num_pairs == old.snapshot("datastore").num_pairs == 0


def test_each_drafter_that_costs_no_forward_has_a_table_of_its_own() -> None:
    memory = CorrectionMemory()
    for token, drafter in enumerate(FREE_DRAFTERS, 1):
        memory.record(drafter, token, 9)
    memory.merge_round()
    for token, drafter in enumerate(FREE_DRAFTERS, 1):
        assert contents(memory.snapshot(drafter)) == {(token, 9): 1}
    assert memory.snapshot("multilevel").num_pairs == 0
