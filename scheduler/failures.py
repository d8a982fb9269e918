"""FailureWatch: which failed rounds an engine outlives, and which mean that it can do nothing any more."""

from core.device_errors import is_device_lost

FATAL_ROUNDS = 8  # failed in a row; no request is so bad that it fails others' rounds between its own


class FailureWatch:
    """Counts the rounds that failed since the last one that did not."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def succeeded(self) -> None:
        self._in_a_row = 0

    def is_fatal(self, error: Exception) -> bool:
        """Note a failed round; whether the engine should give up."""
        self._in_a_row += 1
        return self._in_a_row >= FATAL_ROUNDS or is_device_lost(error)
