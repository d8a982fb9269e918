"""Every metric of the process: its name, unit, labels and meaning, once. docs/telemetry.md is held against this list.

Labels come from small closed sets, never from what a client wrote, so the number of series is bounded. Names and
boundaries that begin with gen_ai are those of OpenTelemetry's conventions for model servers, the boundaries with some
more at either end, since a CPU's answers take longer and a GPU's tokens shorter than they reach.
"""

from dataclasses import dataclass
from typing import Literal

from server.telemetry import attributes

Kind = Literal["counter", "histogram", "gauge"]


@dataclass(frozen=True, slots=True)
class Metric:
    """name, unit (UCUM): OpenTelemetry's. labels: attributes it may carry. boundaries: of a histogram's buckets."""

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name of its family in /metrics; a counter's samples have `_total` behind it."""
        name = self.name.replace(".", "_")
        return f"{name}_seconds" if self.unit == "s" and not name.endswith("_seconds") else name


_REQUEST = (*attributes.METRIC_LABELS, "verifier", attributes.ERROR_TYPE)
_DRAFTED = ("verifier", "drafter")
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_PHASE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LENGTHS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0)
_GAPS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
_SPEEDUPS = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)

REQUEST_DURATION = Metric(
    "gen_ai.server.request.duration", "histogram", "s", "From a request's arrival to its last token", _REQUEST, _SECONDS
)
TIME_TO_FIRST_TOKEN = Metric(
    "gen_ai.server.time_to_first_token",
    "histogram",
    "s",
    "From a request's arrival to its first token",
    _REQUEST[:-1],
    _FIRST_TOKEN,
)
TIME_PER_OUTPUT_TOKEN = Metric(
    "gen_ai.server.time_per_output_token",
    "histogram",
    "s",
    "Mean time of a token after the first, of a whole answer",
    _REQUEST[:-1],
    _PER_TOKEN,
)

REQUESTS = Metric("slipstream.requests", "counter", "{request}", "Ended sequences", (*_DRAFTED, "finish_reason"))
REFUSED = Metric("slipstream.requests.refused", "counter", "{request}", "Requests refused because the queue was full")
PROMPT_TOKENS = Metric("slipstream.prompt.tokens", "counter", "{token}", "Prompt tokens of sequences that were read")
CACHE_HIT_TOKENS = Metric(
    "slipstream.prefix_cache.hit.tokens", "counter", "{token}", "Of them, those found in the prefix cache"
)
GENERATED_TOKENS = Metric("slipstream.generated.tokens", "counter", "{token}", "Delivered tokens", ("verifier",))
PREEMPTIONS = Metric("slipstream.preemptions", "counter", "{preemption}", "Sequences that had to make room for others")
FAILED_ROUNDS = Metric("slipstream.rounds.failed", "counter", "{round}", "Rounds that raised an error")

ROUNDS = Metric("slipstream.speculation.rounds", "counter", "{round}", "Verification rounds of sequences", _DRAFTED)
DRAFT_TOKENS = Metric("slipstream.speculation.draft.tokens", "counter", "{token}", "Proposed tokens", _DRAFTED)
ACCEPTED_TOKENS = Metric(
    "slipstream.speculation.accepted.tokens",
    "counter",
    "{token}",
    "Delivered draft tokens, loosened included",
    _DRAFTED,
)
BONUS_TOKENS = Metric(
    "slipstream.speculation.bonus.tokens", "counter", "{token}", "Tokens behind wholly accepted blocks", _DRAFTED
)
LOOSENED_TOKENS = Metric(
    "slipstream.speculation.loosened.tokens",
    "counter",
    "{token}",
    "Accepted drafts that were not the target's own choice",
    ("verifier", "rule"),
)
POSITION_DRAFTED = Metric(
    "slipstream.speculation.position.drafted", "counter", "{token}", "Drafts checked at a position", ("position",)
)
POSITION_DELIVERED = Metric(
    "slipstream.speculation.position.delivered", "counter", "{token}", "Drafts delivered from it", ("position",)
)
ACCEPTANCE_LENGTH = Metric(
    "slipstream.speculation.acceptance_length",
    "histogram",
    "{token}",
    "Tokens per verification round, of a whole answer",
    ("verifier",),
    _LENGTHS,
)
ESTIMATED_SPEEDUP = Metric(
    "slipstream.speculation.estimated_speedup",
    "histogram",
    "1",
    "What off would have taken over what a whole answer's rounds took",
    ("verifier",),
    _SPEEDUPS,
)
OFF_SECONDS = Metric(
    "slipstream.speculation.off.seconds", "counter", "s", "What off would have taken for the rounds", ("verifier",)
)
ROUND_SECONDS = Metric("slipstream.speculation.round.seconds", "counter", "s", "What the rounds took", ("verifier",))
PHASE_DURATION = Metric(
    "slipstream.round.phase.duration", "histogram", "s", "Wall time of a round's phases", ("phase",), _PHASE
)

RUNNING = Metric("slipstream.requests.running", "gauge", "{request}", "Sequences that hold KV blocks")
WAITING = Metric("slipstream.requests.waiting", "gauge", "{request}", "Sequences in the waiting room")
KV_BLOCKS = Metric("slipstream.kv.blocks", "gauge", "{block}", "KV blocks by state; together the limit", ("state",))
KV_BLOCKS_LIMIT = Metric("slipstream.kv.blocks.limit", "gauge", "{block}", "KV blocks there are")
MEMORY_PAIRS = Metric(
    "slipstream.correction_memory.pairs", "gauge", "{pair}", "Pairs the correction memory holds", ("proposer",)
)
MEMORY_LOOKUPS = Metric(
    "slipstream.correction_memory.lookups", "counter", "{lookup}", "Mismatches that asked the correction memory"
)
MEMORY_HITS = Metric(
    "slipstream.correction_memory.hits", "counter", "{lookup}", "Of them, those whose pair it holds often enough"
)

AUDIT_ANSWERS = Metric(
    "slipstream.audit.answers", "counter", "{answer}", "Loosened answers that the audit has replayed", ("verifier",)
)
AUDIT_AUDITED_TOKENS = Metric(
    "slipstream.audit.audited.tokens", "counter", "{token}", "Their loosened tokens that were judged", ("verifier",)
)
AUDIT_RECONVERGED_TOKENS = Metric(
    "slipstream.audit.reconverged.tokens",
    "counter",
    "{token}",
    "Of those, ones after which the target came back to the delivered text",
    ("verifier",),
)
AUDIT_OWN_SURPRISAL = Metric(
    "slipstream.audit.own.surprisal",
    "counter",
    "{nat}",
    "Summed over the answers: the target's mean surprisal, the negated log-probability of a token, at its own answer",
    ("verifier",),
)
AUDIT_DELIVERED_SURPRISAL = Metric(
    "slipstream.audit.delivered.surprisal",
    "counter",
    "{nat}",
    "The same at the delivered answer; what it is higher, over the answers, is the mean gap",
    ("verifier",),
)
AUDIT_LOGPROB_GAP = Metric(
    "slipstream.audit.logprob_gap",
    "histogram",
    "{nat}",
    "Nats a token by which the target prefers its own answer to the delivered one; 0 where it does not",
    ("verifier",),
    _GAPS,
)
AUDIT_DEMOTED = Metric(
    "slipstream.audit.demoted", "gauge", "1", "Whether the guard has put strict in a verifier's place", ("verifier",)
)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
