"""The server process: uvicorn around the application, and how it ends.

A stop (SIGTERM or Ctrl-C) closes the port, lets running answers finish for server.drain_seconds, then ends the rest
with an error that says why.
"""

import asyncio
import logging
import math
import signal
import socket
import time
from types import FrameType

import uvicorn

from core.models.errors import InvalidModelFile, UnsupportedModel
from server import garbage
from server.app import create_app
from server.assembly import AssemblyError, assemble, serving_config
from server.model_folders import Folders
from server.readiness import Readiness
from server.serving_config import Served
from server.settings import Settings
from server.streaming import LAST_WORDS_SECONDS
from server.telemetry.telemetry import Telemetry

log = logging.getLogger(__name__)

# Request line and headers; bodies have their own limit in the application.
_MAX_HEADER_BYTES = 64 << 10
_EXPLAINED = (AssemblyError, UnsupportedModel, InvalidModelFile, MemoryError)


class _Server(uvicorn.Server):
    """Lets the engine end what runs past the drain time, so that clients are told; uvicorn would cut them off."""

    def __init__(self, config: uvicorn.Config, readiness: Readiness) -> None:
        super().__init__(config)
        self._readiness = readiness

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn would raise SIGTERM once more in the end: but to have been asked to stop, and to have done it, is no
        failure, whoever started us."""
        super().handle_exit(sig, frame)
        self._captured_signals = [one for one in self._captured_signals if one != signal.SIGTERM]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping; running answers may finish, Ctrl-C again ends them now")
        ending = asyncio.create_task(self._readiness.end())
        await super().shutdown(sockets)
        if self.force_exit:
            stats = self._readiness.stats()
            cut_off = 0 if stats is None else stats.running + stats.waiting
            ending.cancel()
        else:
            cut_off = await ending
        log.info("stopped; answers cut off: %d", cut_off)


class ServerProcess:
    """Serves on a bound port until stopped, or until it shows that the models cannot be loaded or run any more."""

    def __init__(self, settings: Settings, folders: Folders, began: float) -> None:
        self._settings, self._folders, self._began = settings, folders, began
        self._telemetry = Telemetry()
        self._failure: str | None = None
        application = create_app(serving_config(settings), self._load, self._telemetry)
        self._readiness: Readiness = application.state.readiness
        self._server = _Server(
            uvicorn.Config(
                application,
                callback_notify=self._end_if_failed,
                timeout_notify=1,
                http="h11",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
                timeout_keep_alive=settings.server.keep_alive_seconds,
                timeout_graceful_shutdown=math.ceil(settings.server.drain_seconds) + LAST_WORDS_SECONDS,
            ),
            self._readiness,
        )

    def run(self, port: socket.socket) -> str | None:
        """Serve until stopped; why it ended, if that was not asked for."""
        host, number = port.getsockname()[:2]
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{number}/v1"
        log.info("listening on %s; loading the models", self._url)
        logging.getLogger("server.readiness").addFilter(_without_traceback)
        self._server.run(sockets=[port])
        return self._failure

    async def _load(self) -> Served:
        served = await asyncio.to_thread(assemble, self._settings, self._folders, self._telemetry)
        garbage.resume()
        log.info("models loaded, %.1f s after the start", time.monotonic() - self._began)
        return served

    async def _end_if_failed(self) -> None:
        """Called by uvicorn every second: a server that can never answer should not look alive."""
        if self._readiness.error is not None:
            self._failure = f"the models could not be loaded: {self._readiness.error}"
        elif self._readiness.engine_failure is not None:
            error = self._readiness.engine_failure
            first_line = str(error).partition("\n")[0] or type(error).__name__
            self._failure = f"the engine gave up: {first_line}"
        if self._failure is not None:
            self._server.should_exit = True


def _without_traceback(record: logging.LogRecord) -> bool:
    """Let a failure through whose reason is not known; one that explains itself is printed at the end."""
    return not (record.exc_info and isinstance(record.exc_info[1], _EXPLAINED))
