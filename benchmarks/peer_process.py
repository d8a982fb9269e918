"""Other engines as processes of their own, and the Doors to them."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.answers import Answer, Group
from benchmarks.errors import BenchError
from benchmarks.http_door import HttpDoor
from benchmarks.peer_order import Encode

_LAST_WORDS = 800


class PeerFailedError(BenchError):
    """Another engine did not start, or ended; the message has its last words."""


@dataclass
class Worker:
    """A process that speaks one JSON object a line, and ends when its stdin does. hello: its first line."""

    process: asyncio.subprocess.Process
    what: str
    hello: dict[str, Any] = field(default_factory=dict)
    _errors: "asyncio.Task[bytes] | None" = None

    @classmethod
    async def start(cls, what: str, command: Sequence[str], order: Mapping[str, Any]) -> Self:
        """Wait for its first line. PeerFailedError if it ends before."""
        process = await asyncio.create_subprocess_exec(
            *command,
            json.dumps(order),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 26,
        )
        worker = cls(process, what)
        assert process.stderr is not None
        worker._errors = asyncio.create_task(process.stderr.read())
        worker.hello = await worker.line()
        return worker

    async def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while text := await self.process.stdout.readline():
            if text.startswith(b"{"):  # libraries chat, too
                answer: dict[str, Any] = json.loads(text)
                return answer
        said = (await self._errors).decode(errors="replace").strip() if self._errors is not None else ""
        raise PeerFailedError(f"{self.what} ended: {said[-_LAST_WORDS:]}")

    async def order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        await self.process.stdin.drain()
        return await self.line()

    async def stop(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


@dataclass
class TransformersDoor:
    """One mode of a transformers worker. fields are left aside: it is greedy. decode: token ids as the text that other
    engines deliver."""

    worker: Worker
    mode: str
    encode: Encode
    decode: Callable[[Sequence[int]], str]

    async def ask(
        self, messages: Sequence[str], fields: Mapping[str, Any], max_tokens: int, clients: int | None = None
    ) -> Group:
        """All at once: BenchError if fewer clients than prompts should ask."""
        if clients is not None and clients < len(messages):
            raise BenchError("transformers takes all prompts of a group at once")
        prompts = [self.encode(message) for message in messages]
        said = await self.worker.order({"mode": self.mode, "prompts": prompts, "max_tokens": max_tokens})
        return Group(
            tuple(
                Answer(
                    len(one["tokens"]),
                    self.decode(one["tokens"]),
                    one["asked"],
                    tuple(one["arrivals"]),
                    one["first"],
                    len(prompt),
                )
                for one, prompt in zip(said["answers"], prompts, strict=True)
            )
        )


async def start_transformers(
    target: Path, draft: Path | None, eos: Sequence[int], threads: int, trials: Sequence[Mapping[str, Any]]
) -> Worker:
    order = {
        "target": str(target),
        "draft": str(draft) if draft else None,
        "eos": sorted(eos),
        "threads": threads,
        "trials": list(trials),
    }
    return await Worker.start("transformers", [sys.executable, "-m", "benchmarks.transformers_worker"], order)


async def start_llama(python: str, order: Mapping[str, Any]) -> Worker:
    """llama.cpp's server in one mode. PeerFailedError if that Python has no xllamacpp."""
    script = Path(__file__).with_name("llama_worker.py")
    try:
        return await Worker.start(f"llama.cpp ({order['mode']})", [python, str(script)], order)
    except PeerFailedError as error:
        if "No module named 'xllamacpp'" in str(error):
            raise PeerFailedError(
                f"{python} has no xllamacpp: pip install 'slipstream[peers]', or name a Python that has it by "
                "--llama-python"
            ) from error
        raise


def llama_door(worker: Worker, encode: Encode) -> HttpDoor:
    return HttpDoor(worker.hello["url"], "llama", path="completions", encode=encode)
