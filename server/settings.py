"""Settings: one YAML file, overridden by SLIPSTREAM_* environment variables, overridden by flags.

A variable names its key with double underscores: SLIPSTREAM_SERVER__PORT=9000, SLIPSTREAM_MODELS__DRAFT=null.
SLIPSTREAM_API_KEYS=sk-... is short for SLIPSTREAM_SERVER__API_KEYS. Whatever is wrong is said in one line
that names the key, the value and what is allowed; nothing unknown is ignored.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.verifiers.params import (
    CsdParams,
    FlyParams,
    HybridParams,
    LossyParams,
    OffParams,
    StrictParams,
    TypicalParams,
)
from server.audit.settings import AuditSettings
from server.datastore_settings import DatastoreSettings, from_files
from server.memory_settings import CorrectionMemorySettings, from_source
from server.model_settings import ModelsSettings
from server.settings_base import Section, conflict, refuse_booleans
from server.weights.store import default_cache

# Spelt out, since a Literal must be; a test holds them against core's tables, which import torch.
VerifierName = Literal["off", "strict", "fly", "csd", "hybrid", "lossy", "typical"]
DrafterName = Literal["model", "prompt_lookup", "multilevel", "token_recycling", "datastore"]
DraftLength = Literal["fixed", "adaptive"]


def _or_auto(value: Any, number: ValidatorFunctionWrapHandler) -> Any:
    if value == "auto":
        return None
    try:
        return number(value)
    except ValidationError:
        raise PydanticCustomError("tokens", "should be a whole number from 256 up, or auto") from None


class KvCacheSettings(Section):
    """tokens: positions held for all sequences together, rounded up to whole blocks; on a CPU, memory is taken as
    it fills. `auto` (None here): on a CPU 32768, on CUDA what fits beside the weights and the heaviest round, which is
    measured, into gpu_memory_utilization of a device's memory.
    """

    tokens: Annotated[int | None, Field(ge=256), WrapValidator(_or_auto)] = None
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)


class SchedulerSettings(Section):
    """Bounds on what runs at once; see scheduler.limits.SchedulerLimits."""

    max_running: int = Field(16, ge=1)
    max_waiting: int = Field(256, ge=0)
    prefill_chunk: int = Field(256, ge=1)
    round_tokens: int = Field(512, ge=1)

    @model_validator(mode="after")
    def _chunk_fits(self) -> Self:
        if self.prefill_chunk > self.round_tokens:
            raise conflict(f"prefill_chunk = {self.prefill_chunk} must not exceed round_tokens = {self.round_tokens}")
        return self


class VerifierSettings(Section):
    """Per verifier, the parameters a request naming it does not give."""

    off: OffParams = OffParams()
    strict: StrictParams = StrictParams()
    fly: FlyParams = FlyParams()
    csd: CsdParams = CsdParams()
    hybrid: HybridParams = HybridParams()
    lossy: LossyParams = LossyParams()
    typical: TypicalParams = TypicalParams()


class CostSettings(Section):
    """What forwards cost, by rows: in seconds or in any other unit, as only their proportions count."""

    target: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]] = Field(min_length=2)
    draft: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _rising(self) -> Self:
        for name, points in (("target", self.target), ("draft", self.draft or {1: 1.0})):
            costs = [points[rows] for rows in sorted(points)]
            if 1 not in points:
                raise conflict(f"{name} must say what 1 row costs: all else is compared with it")
            if costs != sorted(costs):
                raise conflict(f"{name} must not fall: more rows never cost less")
        return self


class SpeculationSettings(Section):
    """What a request gets that does not say, and what it may say.

    draft_length: `fixed` drafts num_draft_tokens each round, `adaptive` as many of them as pay. costs: what loose
    verifiers' adaptive lengths are weighed with, in place of what each start measures, so that their answers are the
    same after it; loose_company: as if so many alike sequences were decoded at a time. correction_memory: CSD's table,
    a file or a database; without one csd loosens nothing. datastore: the files that the drafter of that name draws on;
    without any nobody can choose it.
    """

    verifier: VerifierName = "strict"
    verifiers: VerifierSettings = VerifierSettings()
    allowed_verifiers: tuple[VerifierName, ...] = Field(get_args(VerifierName), min_length=1)
    drafter: Literal["auto"] | DrafterName = "auto"
    allowed_drafters: tuple[DrafterName, ...] = Field(get_args(DrafterName), min_length=1)
    num_draft_tokens: int = Field(8, ge=1, le=64)
    max_num_draft_tokens: int = Field(32, ge=1, le=64)
    draft_length: DraftLength = "adaptive"
    costs: CostSettings | None = None
    loose_company: int = Field(1, ge=1, le=1024)
    strict_prefix: int = Field(0, ge=0)
    correction_memory: Annotated[CorrectionMemorySettings | None, BeforeValidator(from_source)] = None
    datastore: Annotated[DatastoreSettings | None, BeforeValidator(from_files)] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        k, most = self.num_draft_tokens, self.max_num_draft_tokens
        if k > most:
            raise conflict(f"num_draft_tokens = {k} must not exceed max_num_draft_tokens = {most}")
        if self.verifier not in self.allowed_verifiers:
            allowed = ", ".join(self.allowed_verifiers)
            raise conflict(f"verifier = {self.verifier} must be one of allowed_verifiers ({allowed})")
        if self.drafter not in ("auto", *self.allowed_drafters):
            allowed = ", ".join(self.allowed_drafters)
            raise conflict(f"drafter = {self.drafter} must be auto or one of allowed_drafters ({allowed})")
        if self.datastore is None and (self.drafter == "datastore" or self.allowed_drafters == ("datastore",)):
            raise conflict("the drafter datastore needs files to draw on: set speculation.datastore")
        return self


class ChatSettings(Section):
    """Which markup the model writes around its tool calls and its reasoning; auto tells it from its chat template."""

    tool_call_parser: Literal["auto", "hermes", "llama3_json", "mistral", "none"] = "auto"
    reasoning_parser: Literal["auto", "think", "mistral", "none"] = "auto"


def _as_list(value: Any) -> Any:
    """`a,b`, as it is easily written in a variable, is the list [a, b]. A blank stays: no key must not mean no lock."""
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


class ServerSettings(Section):
    """Where and to whom. cors_origins: ["*"] for any. drain_seconds: how long a stop waits for running answers."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=0, le=65535)
    api_keys: Annotated[tuple[SecretStr, ...], BeforeValidator(_as_list)] = ()
    cors_origins: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()
    owned_by: str = Field("slipstream", min_length=1)
    max_body_bytes: int = Field(8 << 20, ge=1024)
    body_timeout: float = Field(60.0, gt=0)
    keep_alive_seconds: int = Field(75, ge=1)
    drain_seconds: float = Field(30.0, ge=0)

    @model_validator(mode="after")
    def _keys_are_keys(self) -> Self:
        if any(not key.get_secret_value().strip() for key in self.api_keys):
            raise conflict("api_keys must not hold an empty key")
        return self


class Settings(BaseSettings):
    """Everything, checked. served_model_name: default the target's name. aliases: other names requests may use.

    max_context: prompt and output together; default what the model and the KV cache allow. threads: default
    torch's own choice, the physical cores, or fewer where a container's quota allows no more.
    """

    model_config = SettingsConfigDict(
        env_prefix="SLIPSTREAM_", env_nested_delimiter="__", env_ignore_empty=True, extra="forbid", frozen=True
    )

    models: ModelsSettings
    served_model_name: str | None = Field(None, min_length=1)
    aliases: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    max_context: int | None = Field(None, ge=2)
    kv_cache: KvCacheSettings = KvCacheSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    chat: ChatSettings = ChatSettings()
    audit: AuditSettings = AuditSettings()
    server: ServerSettings = ServerSettings()
    threads: int | None = Field(None, ge=1, le=1024)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    cache_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(default_factory=default_cache)

    _no_booleans = field_validator("*", mode="before")(classmethod(refuse_booleans))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        drafter, context, tokens = self.speculation.drafter, self.max_context, self.kv_cache.tokens
        if self.models.draft is None and drafter in ("model", "multilevel"):
            raise conflict(
                f"speculation.drafter = {drafter} needs a draft model: set models.draft, or use auto or prompt_lookup"
            )
        costs = self.speculation.costs
        if costs is not None and (costs.draft is None) != (self.models.draft is None):
            raise conflict("speculation.costs.draft must be given if, and only if, there is a models.draft")
        if context is not None and tokens is not None and context > tokens:
            raise conflict(f"max_context = {context} must not exceed kv_cache.tokens = {tokens}")
        self._check_blocks_fit()
        return self

    def _check_blocks_fit(self) -> None:
        """A loose block is never cut, so it must fit into a round as a whole: its drafts and the token before them."""
        loose = [name for name in self.speculation.allowed_verifiers if name not in ("off", "strict")]
        most, rows = self.speculation.max_num_draft_tokens, self.scheduler.round_tokens
        if loose and most >= rows:
            raise conflict(
                f"speculation.max_num_draft_tokens = {most} must be below scheduler.round_tokens = {rows}, "
                f"as long as speculation.allowed_verifiers has {', '.join(loose)}"
            )

    @property
    def model_name(self) -> str:
        """The name /v1/models lists."""
        return self.served_model_name or self.models.target.label

    def warnings(self) -> list[str]:
        """What is allowed but probably not meant."""
        found = []
        k, verifiers = self.speculation.num_draft_tokens, self.speculation.verifiers
        for name, window in (("fly", verifiers.fly.window), ("hybrid", verifiers.hybrid.window)):
            if name in self.speculation.allowed_verifiers and k <= window:
                found.append(
                    f"speculation.num_draft_tokens = {k} is not above speculation.verifiers.{name}.window = {window}: "
                    f"by default {name} cannot defer anything"
                )
        if self.speculation.verifier in ("csd", "hybrid") and self.speculation.correction_memory is None:
            does = "loosens nothing" if self.speculation.verifier == "csd" else "is fly alone"
            found.append(
                f"speculation.verifier = {self.speculation.verifier} {does} without a speculation.correction_memory"
            )
        if not self.server.api_keys and self.server.host not in ("127.0.0.1", "localhost", "::1"):
            found.append(f"server.host = {self.server.host} without server.api_keys: anybody who reaches it can use it")
        return found
