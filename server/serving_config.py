"""What the HTTP side needs to know: settings before the models are loaded, and what loading gives.

`ServingConfig` is frozen and complete before the port is bound; it comes from the settings file. `Served` is
what the loader hands over once the models are in memory: the engine and its target's language. Between the two
the server answers 503, so a load balancer sees a live process that is not ready yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from core.correction_memory import CorrectionMemory
from core.drafters.base import DRAFTERS
from core.verifiers.params import VerifierParams
from core.verifiers.registry import VERIFIERS
from scheduler.engine import AsyncEngine
from server.audit.settings import AuditSettings
from server.language import Language
from server.memory_store.exchange import MemoryExchange


def _verifier_defaults() -> Mapping[str, VerifierParams]:
    return MappingProxyType({name: verifier.params() for name, verifier in VERIFIERS.items()})


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard bounds on one request, each answered with a 400 (413 and 408 for the body) that names the bound.

    max_body_bytes: of the HTTP body. body_timeout: seconds a body may take to arrive. max_n: choices per
    prompt. max_prompts: prompts in one completion. max_sequences: prompts x n. max_stop: stop strings.
    max_stop_chars: characters of one stop string. max_logit_bias, max_stop_token_ids, max_messages,
    max_metadata, max_tools, max_choices: entries. max_tools_bytes: of all tools as JSON. max_constraint_bytes: of a
    JSON schema, regular expression or grammar, or of all choices. max_schema_depth: levels of objects and lists in a
    JSON schema, a function's parameters too.
    """

    max_body_bytes: int = 8 << 20
    body_timeout: float = 60.0
    max_n: int = 16
    max_prompts: int = 64
    max_sequences: int = 64
    max_stop: int = 16
    max_stop_chars: int = 1024
    max_logit_bias: int = 1024
    max_stop_token_ids: int = 64
    max_messages: int = 2048
    max_metadata: int = 16
    max_tools: int = 128
    max_tools_bytes: int = 256 << 10
    max_constraint_bytes: int = 128 << 10
    max_schema_depth: int = 64
    max_choices: int = 1024


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """How requests are understood; whatever a request leaves out is filled in from here.

    model: the name that /v1/models lists and answers carry. aliases: other names that requests may use.
    default_verifier: a key of verifier_defaults. verifier_defaults: for every verifier type the parameters that
    a request naming it does not give. allowed_verifiers: what a request may choose; naming just the default pins it.
    default_drafter: "auto" or one of allowed_drafters. allowed_drafters: subset of core's DRAFTERS.
    default_num_draft_tokens: K where a request does not say; max_num_draft_tokens: the most it may say.
    default_draft_length: "adaptive" or "fixed", where it does not say.
    strict_prefix: default number of leading output tokens that are never loosened.
    api_keys: accepted bearer tokens; empty leaves the server open. cors_origins: origins a browser may call from,
    ("*",) for any, () for none. owned_by: shown by /v1/models. drain_seconds: how long shutdown waits for
    running requests. queue_retry_after: seconds told to clients while the models load. tool_call_parser,
    reasoning_parser: which markup the model writes; "auto" tells it from its chat template, "none" reads none.
    """

    model: str
    aliases: tuple[str, ...] = ()
    default_verifier: str = "strict"
    verifier_defaults: Mapping[str, VerifierParams] = field(default_factory=_verifier_defaults)
    allowed_verifiers: tuple[str, ...] = tuple(VERIFIERS)
    default_drafter: str = "auto"
    allowed_drafters: tuple[str, ...] = DRAFTERS
    default_num_draft_tokens: int = 8
    max_num_draft_tokens: int = 32
    default_draft_length: Literal["fixed", "adaptive"] = "adaptive"
    strict_prefix: int = 0
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    owned_by: str = "slipstream"
    drain_seconds: float = 30.0
    queue_retry_after: int = 5
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    limits: Limits = field(default_factory=Limits)
    audit: AuditSettings = field(default_factory=AuditSettings)

    def serves(self, name: str) -> bool:
        return name == self.model or name in self.aliases


@dataclass(frozen=True, slots=True)
class Served:
    """What the loader returns.

    engine: not started yet. language: of the target. has_draft: whether there is a draft model. calibrated_drafters:
    those for whose drafts the correction memory holds pairs; csd loosens nothing of any other's. memory: the engine's.
    exchange: what shares its counts with other servers; not started yet.
    """

    engine: AsyncEngine
    language: Language
    has_draft: bool
    calibrated_drafters: frozenset[str] = frozenset()
    memory: CorrectionMemory = field(default_factory=CorrectionMemory)
    exchange: MemoryExchange | None = None
