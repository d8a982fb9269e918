"""Tables of draft KV: what is valid is what an obvious model of a cache says, and blocks come back."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.models.draft_tables import DraftTable, DraftTables
from core.models.split_pool import SplitPool
from core.sequence import Sequence
from tests.tiny import make_request


@dataclass
class Ids:
    """A reading whose settled ids are pushed as they are."""

    settled: list[int] = field(default_factory=list)
    taken: int = 0

    @property
    def open(self) -> list[int]:
        return []

    def push(self, tokens: object) -> None:
        raise NotImplementedError

    def ahead(self, tokens: object) -> list[int]:
        raise NotImplementedError


def opened(tables: DraftTables, *ids: int, name: str = "r") -> tuple[Sequence, DraftTable]:
    sequence = Sequence(make_request([5], request_id=name))
    return sequence, tables.open(sequence, Ids(list(ids)))


def feed(tables: DraftTables, sequence: Sequence, behind: list[int]) -> tuple[int, list[int]]:
    """What had to be fed, from which position on."""
    table = tables.find(sequence)
    assert table is not None
    assert tables.make_room(sequence, len(table.tokens) + len(behind), ())
    start, ids = table.lacking(behind)
    table.beyond += ids
    tables.settle(table)
    return start, ids


def read(tables: DraftTables, sequence: Sequence) -> tuple[int, list[int]]:
    """What is fed of a text that nobody drafts for yet: all of it but the last."""
    table = tables.find(sequence)
    assert table is not None
    tables.look_up(table)
    assert tables.make_room(sequence, len(table.tokens), ())
    start, ids = table.lacking([])
    table.beyond += ids[:-1]
    tables.settle(table)
    return start, ids[:-1]


def test_only_what_differs_is_fed_again() -> None:
    tables = DraftTables(8, 4)
    sequence, table = opened(tables, 1, 2, 3)
    assert feed(tables, sequence, [4, 5]) == (0, [1, 2, 3, 4, 5])
    assert feed(tables, sequence, [4, 5, 6]) == (5, [6])
    assert feed(tables, sequence, [4, 9]) == (4, [9])
    table.reading.settled += [4, 9]
    assert feed(tables, sequence, []) == (4, [9])  # the last one, whose row tells what comes next
    assert feed(tables, sequence, [7]) == (5, [7])


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), max_size=6)), max_size=12))
def test_positions_hold_the_ids_they_were_fed(steps: list[tuple[int, list[int]]]) -> None:
    """Each step settles some of what it was fed last, or anything, and wants other ids behind; a dictionary of what
    was written where tells whether the KV of all positions is that of the ids that stand there now."""
    tables = DraftTables(40, 4)
    sequence, table = opened(tables, 1)
    written: dict[int, tuple[int, ...]] = {}
    for count, behind in steps:
        table.reading.settled += [n % 3 for n in range(count)]
        wanted = [*table.tokens, *behind]
        start, ids = feed(tables, sequence, behind)
        assert ids
        assert start + len(ids) == len(wanted)
        for position in range(start, len(wanted)):
            written[position] = tuple(wanted[: position + 1])
        assert all(written[position] == tuple(wanted[: position + 1]) for position in range(len(wanted)))
        tables.check_integrity()


def test_texts_that_begin_alike_share_what_one_has_read() -> None:
    tables = DraftTables(8, 4)
    first, _ = opened(tables, *range(10), name="a")
    feed(tables, first, [])
    _, table = opened(tables, *range(9), 77, name="b")
    tables.look_up(table)
    assert (table.target_tokens, len(table.blocks)) == (8, 2)
    table.reading.settled += [1, 2]
    tables.look_up(table)
    assert table.target_tokens == 8
    tables.check_integrity()


def test_of_a_text_that_is_read_piece_by_piece_all_that_another_has_read_is_shared() -> None:
    tables = DraftTables(12, 4)
    first, _ = opened(tables, *range(20), name="a")
    assert read(tables, first) == (0, [*range(19)])
    second, table = opened(tables, *range(7), name="b")
    assert read(tables, second) == (4, [4, 5])
    table.reading.settled += range(7, 20)
    assert read(tables, second) == (16, [16, 17, 18])
    table.reading.settled += range(20, 30)
    assert read(tables, second) == (19, [*range(19, 29)])
    tables.check_integrity()


def test_what_is_open_or_drafted_is_never_shared() -> None:
    tables = DraftTables(8, 4)
    first, _ = opened(tables, 0, 1, 2, 3, 4, name="a")
    feed(tables, first, [5, 6, 7, 8])
    _, table = opened(tables, *range(9), name="b")
    tables.look_up(table)
    assert table.target_tokens == 4


def test_who_finds_no_room_takes_that_of_who_used_theirs_least_recently() -> None:
    tables = DraftTables(4, 4)
    holders = [opened(tables, *range(n, n + 7), name=str(n))[0] for n in range(2)]
    for holder in holders:
        feed(tables, holder, [])
        holder.draft_tokens = 1
    feed(tables, holders[0], [])
    third, _ = opened(tables, *range(20, 27), name="third")
    assert not tables.make_room(third, 7, holders)
    assert tables.make_room(third, 7, ())
    assert [holder.draft_tokens for holder in holders] == [1, 0]
    emptied = tables.find(holders[1])
    assert emptied is not None
    assert (emptied.blocks, emptied.target_tokens, emptied.beyond) == ([], 0, [])
    assert tables.make_room(third, tables.capacity, ())
    tables.check_integrity()


def test_a_sequence_that_gives_its_blocks_back_gives_those_of_its_table_back() -> None:
    pool = SplitPool(8, 4)
    sequence, _ = opened(pool.tables, 1, 2, 3)
    feed(pool.tables, sequence, [4])
    assert pool.grow(sequence, 4)
    pool.commit_tokens(sequence, 0, 1)
    pool.release(sequence)
    assert pool.tables.find(sequence) is None
    assert pool.num_free == pool.tables.pool.num_free == 8
    pool.check_integrity(())


def test_a_tables_watermark_says_nothing_of_the_targets_blocks() -> None:
    """Whoever finds them has a table of its own to fill."""
    pool = SplitPool(8, 4)
    for name, known in (("a", 0), ("b", 8)):
        sequence = Sequence(make_request(range(3, 13), request_id=name))
        assert pool.match_prefix(sequence) == known
        assert sequence.draft_tokens == 0
        assert pool.grow(sequence, 10)
        pool.commit_tokens(sequence, 9, 10)
        pool.refresh_draft_watermark(sequence)
        assert sequence.draft_tokens == 10


@pytest.mark.parametrize("known", [[], [1]])
def test_a_text_of_next_to_nothing_is_looked_up_too(known: list[int]) -> None:
    tables = DraftTables(8, 4)
    _, table = opened(tables, *known)
    tables.look_up(table)
    assert table.target_tokens == 0
