"""StopWalks: makes walks through the answers to one request that look for its stop strings, and holds nothing else."""

from dataclasses import dataclass

from server.text.chat_format import AnswerReading
from server.text.stop_scope import StopScope
from server.text.stop_strings import StopAutomaton, StopStrings
from server.text.token_bytes import TokenBytes

_STATE_BYTES = 320  # of an automaton, measured


@dataclass(frozen=True, slots=True)
class StopWalks:
    """stops: None if the answers have none. token_bytes: of the text that is shown, markup included."""

    stops: StopAutomaton | None
    token_bytes: TokenBytes
    reading: AnswerReading | None

    def __call__(self) -> StopStrings | None:
        """A new walk; None without stop strings."""
        return None if self.stops is None else StopStrings(self.stops, self.token_bytes, self.scope())

    def scope(self) -> StopScope | None:
        """What of one answer its stop strings act on: one for the engine, and one like it for the text."""
        return self.reading.stop_scope() if self.reading is not None and self.stops is not None else None

    @property
    def held(self) -> int:
        """Bytes that only this request's walks need, about."""
        return 0 if self.stops is None else len(self.stops.depth) * _STATE_BYTES
