"""AnswerRecord: what is kept of a loose answer until it is replayed."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from core.provenance import FinishReason
from core.sequence import CommittedToken, GenerationRequest
from server.audit.ending import StopFactory
from server.audit.reconverge import RUN


@dataclass(slots=True)
class AnswerRecord:
    """request: as submitted. new_stop: makes the answer's stop condition afresh. tokens: delivered ids. loosened: their
    positions in the answer. stopped: it ended by itself, rather than at its limit."""

    request: GenerationRequest
    new_stop: StopFactory
    tokens: list[int] = field(default_factory=list)
    loosened: list[int] = field(default_factory=list)
    stopped: bool = False

    def push(self, tokens: Iterable[CommittedToken]) -> None:
        """Take what a round delivered."""
        for token in tokens:
            if token.provenance.loosened:
                self.loosened.append(len(self.tokens))
            self.tokens.append(token.token_id)

    def finish(self, reason: FinishReason) -> None:
        self.stopped = reason is FinishReason.STOP

    @property
    def size(self) -> int:
        """Token ids held."""
        return len(self.request.prompt) + len(self.tokens)

    def known(self, position: int) -> tuple[int, ...]:
        """Prompt and answer before a position of the answer."""
        return (*self.request.prompt, *self.tokens[:position])

    def judgeable(self, within: int, max_context: int) -> list[int]:
        """Loosened positions whose delivered text reaches far enough to say whether the target comes back, and whose
        replay fits into the context. Chosen by position alone: to count those near a cut only if the target came
        back in time would flatter the share."""
        span = within + RUN
        return [
            position
            for position in self.loosened
            if (self.stopped or len(self.tokens) - position >= span)
            and len(self.request.prompt) + position + span <= max_context
        ]


def obstacle(request: GenerationRequest, constrained: bool) -> str | None:
    """Why an answer cannot be replayed from its middle as a request of its own: drawn answers have no greedy
    continuation to compare with, penalties count what stands before, and a grammar would have to be advanced."""
    if not request.sampling.greedy:
        return "sampled"
    if constrained:
        return "constrained"
    return "penalties" if request.sampling.has_penalties else None
