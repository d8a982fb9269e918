"""Whether a program runs to its end, for programs that a model wrote: jail.py, from outside."""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchError

_JAIL = Path(__file__).with_name("jail.py")
_GRACE_SECONDS = 30.0  # beyond the program's own, for starting and ending


class SandboxError(BenchError):
    """This machine has no namespaces for programs; the message says so and what to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """seconds: on the clock, generous since other work may slow it down; cpu_seconds: of each process. memory: bytes
    of address space of each process. files: bytes of a file, and a quarter of all it may write. processes: at once."""

    seconds: float = 30.0
    cpu_seconds: int = 5
    memory: int = 512 << 20
    files: int = 8 << 20
    processes: int = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """reason: why it did not pass, in a few words."""

    passed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """isolated: in namespaces of its own; without, only limits hold, and a program could do what its user can."""

    limits: Limits = Limits()
    isolated: bool = True

    @classmethod
    def open(cls, limits: Limits | None = None, trusted: bool = False) -> "Sandbox":
        """Tried out. trusted: go without isolation where there is none; SandboxError otherwise."""
        box = cls(limits or Limits())
        try:
            if box.run("pass").passed:
                return box
            raise SandboxError("programs do not run in this machine's sandbox")
        except SandboxError:
            if not trusted:
                raise
        return cls(box.limits, isolated=False)

    @property
    def described(self) -> str:
        return "isolated (namespaces, limits)" if self.isolated else "limits only"

    def run(self, program: str) -> Verdict:
        """Run it as a Python program in an empty folder. SandboxError if it cannot be isolated."""
        with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
            answer = self._asked(program.encode("utf-8", "replace"), folder)
        if "refused" in answer:
            raise SandboxError(
                f"programs cannot be isolated here ({answer['refused']}): namespaces need Linux 5.12, and root or "
                "unprivileged user namespaces; in a container, run it outside, or trust the model's programs with "
                "--trust-code"
            )
        return Verdict(bool(answer["passed"]), str(answer["reason"]))

    def _asked(self, program: bytes, folder: str) -> dict[str, Any]:
        options = json.dumps({**asdict(self.limits), "isolated": self.isolated})
        command = [sys.executable, "-I", "-S", "-B", str(_JAIL), options]
        # A session of its own, so that Ctrl-C reaches us first; whatever ends us closes its stdin, and that ends it.
        with subprocess.Popen(
            command, cwd=folder, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        ) as jail:  # fmt: skip
            assert jail.stdin is not None
            assert jail.stdout is not None
            assert jail.stderr is not None
            try:
                jail.stdin.write(len(program).to_bytes(8) + program)
                jail.stdin.flush()
                line = jail.stdout.readline()
                jail.stdin.close()
                jail.wait(_GRACE_SECONDS)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                line = b""
            finally:
                jail.kill()
            if not line:
                raise RuntimeError(f"the jail said nothing: {jail.stderr.read()[-400:].decode(errors='replace')}")
        found: dict[str, Any] = json.loads(line)
        return found
