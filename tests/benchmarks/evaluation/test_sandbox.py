"""Real programs in the real sandbox, most of them hostile."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.evaluation import sandbox as module
from benchmarks.evaluation.sandbox import Limits, Sandbox, SandboxError
from tests.conftest import ROOT

GONE_SECONDS = 20


def test_a_program_that_runs_to_its_end_passes(sandbox: Sandbox) -> None:
    program = "import math, re, json, hashlib, itertools\nassert math.comb(4, 2) == 6\nopen('x', 'w').write('y')"
    assert sandbox.run(program).passed


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("assert 1 == 2", "AssertionError"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended early"),
        ("import os; os.write(3, b'x' * 1000); os._exit(0)", "xxx"),
        ("import os; os.write(3, b'refused: x'); os._exit(0)", "refused: x"),
        ("class refused(Exception): pass\nraise refused('x')", "refused: x"),
        ("import os; os.write(5, b'x')", "Bad file descriptor"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV); import ctypes; ctypes.string_at(0)", "signal 11"),
    ],
)
def test_whatever_does_not_reach_its_end_fails_and_says_why(sandbox: Sandbox, program: str, reason: str) -> None:
    verdict = sandbox.run(program)
    assert not verdict.passed
    assert reason in verdict.reason


def test_an_endless_loop_ends_by_its_cpu_time_and_an_endless_wait_by_the_clock(sandbox: Sandbox) -> None:
    assert sandbox.run("while True: pass").reason == "took too long"
    impatient = replace(sandbox, limits=replace(sandbox.limits, seconds=1.0))
    assert impatient.run("import time; time.sleep(1000)").reason == "took too long"


def test_memory_and_files_are_bounded(sandbox: Sandbox) -> None:
    assert "MemoryError" in sandbox.run("x = bytearray(10 ** 10)").reason
    assert "File too large" in sandbox.run("open('x', 'wb').write(b'x' * 10 ** 8)").reason
    many = "for i in range(99):\n    open(str(i), 'wb').write(b'x' * 10 ** 6)"
    assert "No space left" in sandbox.run(many).reason


def test_memory_that_no_limit_counts_cannot_be_asked_for(sandbox: Sandbox) -> None:
    program = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
for ask in (lambda: libc.shmget(0, 4096, 0o1600), lambda: libc.msgget(0, 0o1600), lambda: libc.semget(0, 1, 0o1600)):
    assert ask() == -1 and ctypes.get_errno() == errno.EPERM
try:
    os.memfd_create("x")
except PermissionError:
    child = os.fork()
    if child == 0:
        os._exit(libc.shmget(0, 4096, 0o1600) != -1)
    assert os.waitpid(child, 0)[1] == 0
else:
    raise SystemError
"""
    assert sandbox.run(program).reason == ""


def test_a_fork_bomb_hits_its_limit_and_leaves_nothing_behind(sandbox: Sandbox) -> None:
    bomb = "import os, time\nfor _ in range(1000):\n    if os.fork() == 0:\n        time.sleep(600)"
    before = _processes()
    assert "BlockingIOError" in sandbox.run(bomb).reason
    assert _until(lambda: len(_processes() - before) < 5)  # the machine goes on meanwhile


def test_output_without_end_is_thrown_away(sandbox: Sandbox) -> None:
    assert sandbox.run("import sys\nfor _ in range(100): sys.stdout.write('x' * 10 ** 6)").passed


def test_the_evaluator_cannot_be_killed_nor_anybody_else_seen(sandbox: Sandbox) -> None:
    program = f"""
import os, signal
assert os.getpid() == 1
for pid in ({os.getpid()}, {os.getppid()}, -1):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        continue
    raise SystemError(pid)
"""
    assert sandbox.run(program).passed


def test_files_outside_can_be_neither_deleted_nor_written_nor_found(sandbox: Sandbox, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    assert "FileNotFoundError" in sandbox.run(f"import os; os.unlink({str(precious)!r})").reason
    program = f"""
import json, os, shutil
shutil.rmtree(os.path.dirname(json.__file__), ignore_errors=True)
assert os.listdir(os.path.dirname(json.__file__))
for path in ({os.path.realpath(sys.executable)!r}, os.__file__, "/usr/new", "/new"):
    try:
        open(path, "w")
    except OSError:
        continue
    raise SystemError(path)
assert not os.path.exists("/etc/passwd") and not os.path.exists("/proc/self") and not os.path.exists("/root/.ssh")
assert os.listdir(".") == []
"""
    assert sandbox.run(program).reason == ""
    assert precious.read_text() == "mine"
    assert os.listdir(os.path.dirname(json.__file__))


def test_there_is_no_network_no_environment_and_no_way_up(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "sk-1")
    program = """
import os, socket, ctypes
assert "SECRET" not in os.environ and os.getuid() != 0
for attempt in (lambda: socket.create_connection(("127.0.0.1", 22), 1), lambda: os.setuid(0), lambda: os.chroot(".")):
    try:
        attempt()
    except OSError:
        continue
    raise SystemError
libc = ctypes.CDLL(None)
assert libc.unshare(0x10000000) != 0 and libc.mount(b"none", b"/work", b"tmpfs", 0, None) != 0
"""
    assert sandbox.run(program).reason == ""


def test_the_names_that_a_program_forgot_to_import_are_missing(sandbox: Sandbox) -> None:
    assert "NameError" in sandbox.run("sys.version").reason
    assert "NameError" in sandbox.run("word").reason


def test_hashes_are_the_same_each_time(sandbox: Sandbox) -> None:
    reasons = {sandbox.run("raise ValueError(hash('once upon a time'))").reason for _ in range(3)}
    assert len(reasons) == 1


def test_a_program_ends_with_the_evaluator(sandbox: Sandbox) -> None:
    code = (
        "from benchmarks.evaluation.sandbox import *\nSandbox(Limits(seconds=600)).run('import time; time.sleep(600)')"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as evaluator:
        jail = _until(lambda: _children(evaluator.pid))
        program = _until(lambda: _children(jail[0]))
        evaluator.send_signal(signal.SIGKILL)
    assert _until(lambda: not os.path.exists(f"/proc/{program[0]}"))


def test_limits_hold_without_isolation_too() -> None:
    box = Sandbox(Limits(seconds=20.0, cpu_seconds=1), isolated=False)
    assert box.run("import os; assert os.listdir('.') == []").passed
    assert "MemoryError" in box.run("x = bytearray(10 ** 10)").reason
    assert box.run("while True: pass").reason == "took too long"


def test_where_nothing_can_be_isolated_programs_run_only_if_they_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = module._JAIL.read_text().replace("_enter_namespaces()\n", "raise OSError(1, 'Not permitted')\n", 1)
    (tmp_path / "jail.py").write_text(refusing)
    monkeypatch.setattr(module, "_JAIL", tmp_path / "jail.py")
    with pytest.raises(SandboxError, match=r"cannot be isolated here .*Not permitted.*--trust-code"):
        Sandbox.open()
    trusting = Sandbox.open(trusted=True)
    assert trusting.described == "limits only"
    assert trusting.run("pass").passed


def _processes() -> set[str]:
    return {name for name in os.listdir("/proc") if name.isdecimal()}


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _until(found):  # type: ignore[no-untyped-def]
    ends = time.monotonic() + GONE_SECONDS
    while not (value := found()) and time.monotonic() < ends:
        time.sleep(0.02)
    return value
