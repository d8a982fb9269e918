"""SchedulerLimits: how much the engine takes on, and how much of it in one round."""

from dataclasses import dataclass, fields

SCORED_ROWS = 256  # at 150,000 tokens' logits a row they take 150 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Fixed for the life of an engine. ValueError if they contradict each other.

    max_running: sequences that hold KV blocks at once.
    max_waiting: sequences that may queue beyond those that could run; 0 refuses instead of queueing.
    prefill_chunk: prompt tokens a round feeds, over all sequences.
    round_tokens: rows of a round's target forward: prompt tokens, pending tokens and drafts.
    max_context: positions of one sequence, prompt and output together.
    """

    max_running: int
    max_waiting: int
    prefill_chunk: int
    round_tokens: int
    max_context: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = {"max_waiting": 0, "max_context": 2}.get(field.name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{field.name} must be an integer of at least {least}, got {value!r}")
        if self.prefill_chunk > self.round_tokens:
            raise ValueError(
                f"prefill_chunk ({self.prefill_chunk}) must not exceed round_tokens ({self.round_tokens}): "
                "a round could never feed so many"
            )

    @property
    def scored_cost(self) -> int:
        """What a prompt token whose logits are asked for takes of prefill_chunk, so that a round has at most
        SCORED_ROWS such rows, and no more than half a chunk."""
        return max(2, -(-self.prefill_chunk // SCORED_ROWS))
