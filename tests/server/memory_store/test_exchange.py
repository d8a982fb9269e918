"""Servers that share one memory: no count is lost or doubled, whoever dies and whatever fails."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.correction_learning import LearningMemory
from core.correction_memory import MemoryFileError
from core.correction_table import pair_key
from server.memory_settings import CorrectionMemorySettings
from server.memory_store import MemoryStore, exchange
from server.memory_store.exchange import MemoryExchange
from server.memory_store.serving import serve_memory
from tests.conftest import ROOT
from tests.server.memory_store.conftest import both_databases

PAIR, OTHER = (1, 2), (3, 4)


def serve(url: str, **more: object) -> tuple[LearningMemory, MemoryExchange]:
    settings = CorrectionMemorySettings(source=url, dynamic=True, sync_seconds=60, **more)  # type: ignore[arg-type]
    served = serve_memory(settings, "T", "D")
    assert isinstance(served.memory, LearningMemory)
    assert served.exchange is not None
    return served.memory, served.exchange


def learn(memory: LearningMemory, *pairs: tuple[int, int]) -> None:
    memory.learn("model", pairs)
    memory.merge_round()


def seen(memory: LearningMemory, pair: tuple[int, int] = PAIR) -> int:
    memory.merge_round()
    return memory.snapshot("model").count(*pair)


@both_databases
def test_servers_come_to_see_each_others_counts(url: str) -> None:
    one, one_exchange = serve(url)
    two, two_exchange = serve(url)
    learn(one, PAIR, PAIR, OTHER)
    learn(two, PAIR)
    for _ in range(2):
        one_exchange.once()
        two_exchange.once()
    assert [seen(one), seen(two), seen(one, OTHER), seen(two, OTHER)] == [3, 3, 1, 1]
    late, _ = serve(url)
    assert seen(late) == 3


def test_a_database_that_cannot_be_had_costs_no_count_and_a_lost_reply_doubles_none(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, sharing = serve(url)
    add = MemoryStore.add

    def refuses(*_: object) -> None:
        raise MemoryFileError("gone")

    def loses_the_reply(*arguments: object) -> None:
        add(*arguments)  # type: ignore[arg-type]
        raise MemoryFileError("connection lost behind COMMIT")

    for failure in (refuses, loses_the_reply):
        learn(memory, PAIR)
        monkeypatch.setattr(MemoryStore, "add", failure)
        with pytest.raises(MemoryFileError):
            sharing.once()
        monkeypatch.setattr(MemoryStore, "add", add)
        learn(memory, PAIR)
    assert seen(memory) == 4, "its own counts stay visible meanwhile"
    sharing.once()
    assert seen(memory) == 4
    assert MemoryStore(url).load().snapshot("model").count(*PAIR) == 4


def test_a_database_file_that_is_replaced_is_the_one_that_counts_from_then_on(url: str, tmp_path: Path) -> None:
    memory, sharing = serve(url)
    learn(memory, PAIR)
    sharing.once()
    shutil.copy(tmp_path / "memory.db", tmp_path / "older.db")
    for _ in range(3):
        learn(memory, OTHER)
        sharing.once()
    os.replace(tmp_path / "older.db", tmp_path / "memory.db")
    sharing.once()
    assert [seen(memory), seen(memory, OTHER)] == [1, 0]
    learn(memory, PAIR)
    sharing.once()
    assert MemoryStore(url).load().snapshot("model").count(*PAIR) == 2


def test_counts_that_could_not_be_sent_before_the_end_are_said(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory, sharing = serve(url)

    def refuses(*_: object) -> None:
        raise MemoryFileError("gone")

    monkeypatch.setattr(MemoryStore, "add", refuses)
    learn(memory, PAIR, PAIR)
    with pytest.raises(MemoryFileError):
        sharing.once()
    sharing.start()
    memory.learn("model", [PAIR, OTHER])
    sharing.stop()
    assert f"4 counts of the correction memory were never added to namespace 'default' of {url}" in caplog.text


def test_stopping_sends_what_the_last_round_taught(url: str) -> None:
    memory, sharing = serve(url)
    sharing.start()
    memory.learn("model", [PAIR])  # no round comes after it
    sharing.stop()
    assert MemoryStore(url).load().snapshot("model").count(*PAIR) == 1


def test_beyond_the_cap_the_store_is_trimmed_and_what_was_added_since_is_packed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, sharing = serve(url, cap=10)
    other, other_sharing = serve(url, cap=10)
    for token in range(12):
        learn(memory, *[(token, 0)] * (token + 1))
    sharing.once()
    other_sharing.once()
    other.merge_round()
    kept = [pair_key(token, 0) for token in range(2, 12)]
    assert MemoryStore(url).load().snapshot("model").keys.tolist() == kept
    assert other.snapshot("model").fold(10).keys.tolist() == kept
    monkeypatch.setattr(exchange, "_UNPACKED_ROWS", 0)
    learn(memory, (11, 0))
    sharing.once()
    assert MemoryStore(url).pull().unpacked == 0


def test_what_another_pair_of_models_counted_is_refused(url: str) -> None:
    serve(url)
    for dynamic in (True, False):
        settings = CorrectionMemorySettings(source=url, dynamic=dynamic)
        with pytest.raises(MemoryFileError, match="of target 'T'"):
            serve_memory(settings, "other", "D")


WORKER = textwrap.dedent("""
    import sys
    from tests.server.memory_store.test_exchange import learn, seen, serve
    url, own, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    memory, sharing = serve(url)
    sys.stdin.readline()
    for done in range(1, rounds + 1):
        learn(memory, *[(own, 2)] * 3, (1, 2))
        sharing.once()
        print(done, flush=True)
    sys.stdin.readline()
    sharing.once()
    print(seen(memory), flush=True)
""")


@contextmanager
def worker(url: str, own: int, rounds: int) -> Iterator[subprocess.Popen[str]]:
    """A process that is told when to begin, counts (own, 2) three times and a common pair once a round, shares after
    each, and when told so says how often it knows the common pair."""
    command = [sys.executable, "-c", WORKER, url, str(own), str(rounds)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def lines_of(process: subprocess.Popen[str]) -> Iterator[int]:
    """The numbers it printed, without one that was cut short."""
    assert process.stdout is not None
    return (int(line) for line in process.stdout if line.endswith("\n"))


@both_databases
def test_two_processes_lose_no_count_though_one_is_killed(url: str) -> None:
    rounds = 60
    MemoryStore(url).begin("T", "D")
    with worker(url, 11, rounds) as survivor, worker(url, 12, 100_000) as victim:
        tell(survivor)
        tell(victim)
        from_victim = lines_of(victim)
        for _ in range(10):
            acknowledged = next(from_victim)
        victim.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *from_victim])
        from_survivor = lines_of(survivor)
        for _ in range(rounds):
            next(from_survivor)
        tell(survivor)
        knows = next(from_survivor)
    table = MemoryStore(url).load().snapshot("model")
    assert table.count(11, 2) == 3 * rounds
    rounds_of_victim, rest = divmod(table.count(12, 2), 3)
    assert rest == 0, "a round's counts are there as a whole or not at all"
    assert rounds_of_victim in (acknowledged, acknowledged + 1), "the last may have been added and not reported"
    assert table.count(1, 2) == knows == rounds + rounds_of_victim
