"""Start-up time and peak memory of a server of its own: started twice, the second start counts."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError
from benchmarks.http_door import HttpDoor
from benchmarks.matrix import GREEDY

_START_SECONDS = 1200.0
_POLL_SECONDS = 0.05


class ServerFailedError(BenchError):
    """The server ended, or did not become ready."""


class ServerProcess:
    """`slipstream serve` as a child, on a free port if none is named. seconds_to_ready: from its start to the first 200
    of /health. sampled_anonymous: most bytes of memory that no file stands behind (RssAnon), seen at any look; the
    kernel keeps no peak of it."""

    def __init__(self, config: Path, port: int | None = None) -> None:
        port = usable_port(port)
        self.url = f"http://127.0.0.1:{port}"
        self.seconds_to_ready = 0.0
        self.sampled_anonymous = 0
        self._began = time.monotonic()
        command = [sys.executable, "-m", "server.cli", "serve", "--config", str(config)]
        where = ["--host", "127.0.0.1", "--port", str(port)]
        self._process = subprocess.Popen([*command, *where], stderr=subprocess.PIPE)
        self._errors = asyncio.create_task(asyncio.to_thread(self._read_errors))
        self._watch = asyncio.create_task(self._look())

    async def ready(self) -> None:
        """ServerFailedError, with the server's last words, if it ends first."""
        async with httpx.AsyncClient(trust_env=False) as client:
            while time.monotonic() - self._began < _START_SECONDS:
                if self._process.poll() is not None:
                    raise ServerFailedError(f"the server ended: {(await self._errors).strip()[-500:]}")
                try:
                    if (await client.get(f"{self.url}/health")).status_code == 200:
                        self.seconds_to_ready = time.monotonic() - self._began
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(_POLL_SECONDS)
        raise ServerFailedError(f"the server was not ready after {_START_SECONDS:.0f} s")

    @property
    def peak_resident(self) -> int:
        """Bytes, weight files that are only mapped included; the kernel's own peak (VmHWM)."""
        return _status(self._process.pid).get("VmHWM", 0)

    def _read_errors(self) -> str:
        """Everything it says, so that its pipe never fills."""
        assert self._process.stderr is not None
        return self._process.stderr.read().decode(errors="replace")

    async def _look(self) -> None:
        while self._process.poll() is None:
            self.sampled_anonymous = max(self.sampled_anonymous, _status(self._process.pid).get("RssAnon", 0))
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        self._process.terminate()
        await asyncio.to_thread(self._process.wait)
        await asyncio.gather(self._watch, self._errors)


@asynccontextmanager
async def serving(config: Path, port: int | None = None) -> AsyncIterator[ServerProcess]:
    """A ready server; stopped at the end."""
    server = ServerProcess(config, port)
    try:
        await server.ready()
        yield server
    finally:
        await server.stop()


async def footprint(
    config: Path, port: int | None, prompts: Sequence[Prompt], max_tokens: int, model: str, key: str = "none"
) -> dict[str, Any]:
    """Start, stop, start again, answer all prompts at once under strict and sampled, and see what it took."""
    async with serving(config, port) as server:
        first = server.seconds_to_ready
    async with serving(config, port) as server:
        idle = server.sampled_anonymous
        door = HttpDoor(server.url, model, key)
        try:
            for sampling in (GREEDY, {"temperature": 1, "top_p": 0.95, "seed": 1}):
                await door.ask([prompt.text for prompt in prompts], {"verifier": "strict", **sampling}, max_tokens)
        finally:
            door.close()
        return {
            "first_start_seconds": first,
            "second_start_seconds": server.seconds_to_ready,
            "clients": len(prompts),
            "sampled_anonymous_gib_started": idle / 2**30,
            "sampled_anonymous_gib": server.sampled_anonymous / 2**30,
            "peak_resident_gib": server.peak_resident / 2**30,
        }


def usable_port(port: int | None) -> int:
    """A free port of this machine, or the named one. ServerFailedError if somebody has that: his /health would answer
    for the server that is measured."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port or 0))
        except OSError as error:
            raise ServerFailedError(f"port {port} cannot be had ({error.strerror}); --port names another") from error
        return int(trial.getsockname()[1])


def _status(pid: int) -> dict[str, int]:
    """Sizes in /proc/PID/status, bytes; empty where there is no such file."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    pairs = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) << 10 for name, size, _ in pairs}
