"""A bare ASGI client, for what an HTTP library cannot do: leave early, send half a body, stop reading."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.server.serving import KEY


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Poll an asynchronous condition. TimeoutError if it does not come true in time."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - an engine's figures cannot be waited for
            await asyncio.sleep(0.002)


@dataclass
class Exchange:
    """One request to an ASGI app. The client sends `body` and stays until `leave` is set.

    more: parts of the body that follow `body`, where `more_body` says that something does.
    """

    path: str
    body: bytes = b""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    more_body: bool = False
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[dict[str, Any]] = field(default_factory=list)
    on_message: Callable[[dict[str, Any]], None] | None = None
    received: int = 0
    more: list[bytes] = field(default_factory=list)

    @classmethod
    def post(cls, path: str, body: dict[str, Any], **more: Any) -> "Exchange":
        return cls(path, json.dumps(body).encode(), **more)

    async def run(self, app: Any) -> None:
        headers = {"host": "test", "authorization": f"Bearer {KEY}", **self.headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
            "state": {},
        }
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        self.received += 1
        if self.received == 1:
            return {"type": "http.request", "body": self.body, "more_body": self.more_body}
        if self.more:
            return {"type": "http.request", "body": self.more.pop(0), "more_body": bool(self.more)}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)
        if self.on_message is not None:
            self.on_message(message)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def response_headers(self) -> dict[str, str]:
        return {name.decode().lower(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])
