"""How rows are shared: nobody's loose block is cut, strict ones are, and all get their turn."""

import pytest

from scheduler.job import Job
from scheduler.sharing import share_decode_rows, share_prefill_rows, wanted_drafts
from tests.scheduler.floor import job, request


def decoding(name: str, verifier: str, drafts: int, arrival: int = 0, output: int = 1, max_tokens: int = 100) -> Job:
    entry = job(request(name, verifier, drafts, prompt=10, max_tokens=max_tokens), arrival)
    entry.sequence.tokens.extend([5] * output)
    entry.sequence.target_tokens = len(entry.sequence.tokens) - 1
    return entry


def resumed(verifier: str, drafts: int, pending: int) -> Job:
    entry = decoding("r", verifier, drafts, output=20)
    entry.sequence.target_tokens = len(entry.sequence.tokens) - pending
    return entry


def shared(jobs: list[Job], rows: int) -> dict[str, int]:
    return {share.job.request_id: share.num_drafts for share in share_decode_rows(jobs, rows, 1000)}


def test_the_worked_example() -> None:
    jobs = [decoding("strict", "strict", 10, 0), decoding("fly", "fly", 7, 1), decoding("off", "off", 0, 2)]
    assert shared(jobs, 16) == {"strict": 6, "fly": 7, "off": 0}
    assert shared(jobs, 8) == {"strict": 6, "off": 0}


def test_strict_drafts_are_cut_evenly_and_small_wishes_leave_their_rest() -> None:
    jobs = [decoding("a", "strict", 10, 0), decoding("b", "strict", 2, 1), decoding("c", "strict", 10, 2)]
    assert shared(jobs, 3 + 14) == {"a": 6, "b": 2, "c": 6}
    assert shared(jobs, 3) == {"a": 0, "b": 0, "c": 0}
    assert shared(jobs, 100) == {"a": 10, "b": 2, "c": 10}


def test_who_waited_longest_comes_first() -> None:
    jobs = [decoding(str(n), "off", 0, n) for n in range(5)]
    for n, entry in enumerate(jobs):
        entry.last_turn = 10 - n
    assert list(shared(jobs, 2)) == ["4", "3"]


@pytest.mark.parametrize(
    ("verifier", "max_tokens", "max_context", "wanted"),
    [
        ("strict", 100, 1000, 8),
        ("strict", 5, 1000, 3),  # one token is out, the bonus row gives one, so three drafts can be delivered
        ("strict", 2, 1000, 0),
        ("fly", 5, 1000, 8),  # drafted all the same, and cut at commit
        ("fly", 100, 15, 4),  # no position beyond the context
        ("strict", 100, 15, 4),
    ],
)
def test_wanted_drafts(verifier: str, max_tokens: int, max_context: int, wanted: int) -> None:
    assert wanted_drafts(decoding("a", verifier, 8, max_tokens=max_tokens), max_context) == wanted


def test_no_drafts_before_the_first_token_nor_without_a_drafter() -> None:
    assert wanted_drafts(job(request("a", "strict", 8)), 1000) == 0
    assert wanted_drafts(decoding("a", "off", 0), 1000) == 0


@pytest.mark.parametrize(
    ("verifier", "pending", "chunk", "rows", "expected"),
    [
        ("strict", 20, 8, 64, (8, 0)),
        ("strict", 20, 32, 64, (20, 6)),  # the round that ends a re-prefill drafts
        ("strict", 20, 32, 23, (20, 3)),
        ("strict", 20, 32, 20, (20, 0)),
        ("fly", 20, 32, 26, (20, 6)),
        ("fly", 20, 32, 25, (19, 0)),  # one token is held back rather than a draft
        ("fly", 20, 32, 7, (7, 0)),
        ("fly", 20, 0, 64, None),
        ("fly", 20, 32, 0, None),
    ],
)
def test_reprefill_chunks(verifier: str, pending: int, chunk: int, rows: int, expected: tuple[int, int] | None) -> None:
    share = share_prefill_rows(resumed(verifier, 6, pending), chunk, rows, 1000, 2)
    assert (None if share is None else (share.num_tokens, share.num_drafts)) == expected
