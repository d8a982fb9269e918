"""Serving, in the order in which things should fail: the port, the devices, then the weights, then the models.

What takes seconds to import waits until the port is there and, for models on the CPU, the weights.
"""

import socket
import time

from server import garbage
from server.model_folders import fetch
from server.preflight import preflight
from server.settings import Settings
from server.weights import WeightsError


class ServeError(Exception):
    """Serving could not begin; the message says why."""


def run(settings: Settings) -> None:
    """Serve until stopped. ServeError if the port, the devices, the weights or the models cannot be had, or the engine
    cannot go on."""
    began = time.monotonic()
    with _bind(settings.server.host, settings.server.port) as port:
        if wrong := preflight(settings):
            raise ServeError("\n".join(wrong))
        try:
            folders = fetch(settings)
        except WeightsError as error:
            raise ServeError(str(error)) from error
        garbage.pause()
        from server.process import ServerProcess

        failure = ServerProcess(settings, folders, began).run(port)
    if failure is not None:
        raise ServeError(failure)


def _bind(host: str, number: int) -> socket.socket:
    """Take the port before the long fetch: a conflict shows at once, and nobody else takes it meanwhile."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        port = socket.socket(family, kind)
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(address)
    except OSError as error:
        raise ServeError(f"cannot listen on {host}:{number}: {error.strerror}") from error
    return port
