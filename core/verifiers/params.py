"""The verifiers' parameters: what a request or a configuration may say, with ranges."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OffParams(_Params):
    """Plain autoregressive decoding: no drafts."""

    type: Literal["off"] = "off"


class StrictParams(_Params):
    """Lossless: a draft is accepted only where it is the target's own choice."""

    type: Literal["strict"] = "strict"


class _EntropyWindow(_Params):
    """FLy (ICLR 2026): loosen where the target is undecided and the next `window` drafts agree."""

    entropy_threshold: float = Field(
        0.3, ge=0.0, le=10.0, description="theta, in nats; the gate opens at or above it, above ln 3 it never does"
    )
    window: int = Field(6, ge=0, le=64, description="W, drafts behind a mismatch that must all agree")
    entropy: Literal["top3", "full"] = Field(
        "top3", description="top3: -sum p ln p over the 3 likeliest tokens; full: H / ln|V|, for study"
    )


class _MemoryGap(_Params):
    """CSD (ACL 2026): loosen where memory knows the pair and the logits are close."""

    frequency_threshold: float = Field(
        6, gt=0, le=1e9, description="lambda: how often the memory must have seen the pair; absolute count"
    )
    frequency_unit: Literal["count", "per_million"] = Field(
        "count", description="per_million: lambda counts occurrences per million calibrated tokens"
    )
    ratio: float = Field(0.3, gt=0.0, le=1.0, description="tau: the draft's logit may lie ln(tau) below the best")


class FlyParams(_EntropyWindow):
    type: Literal["fly"] = "fly"


class CsdParams(_MemoryGap):
    type: Literal["csd"] = "csd"


class HybridParams(_EntropyWindow, _MemoryGap):
    """Loosen where FLy or CSD does; where both do, provenance says deferred. Variants: a window that counts what CSD
    rescues, and an entropy that CSD wants as well."""

    type: Literal["hybrid"] = "hybrid"
    agreement: Literal["native", "rescued"] = Field(
        "native", description="what agrees in FLy's window: native drafts alone, or those that CSD rescues, too"
    )
    rescue_entropy: float = Field(
        0.0, ge=0.0, le=10.0, description="CSD rescues only at or above this entropy, in the unit of `entropy`"
    )


class LossyParams(_Params):
    """Lenience (Leviathan et al. 2023, as CSD's tables use it): a logit-gap gate alone."""

    type: Literal["lossy"] = "lossy"
    threshold: float = Field(0.6, gt=0.0, le=1.0, description="the draft's logit may lie ln(threshold) below the best")


class TypicalParams(_Params):
    """Typical acceptance (Medusa, Cai et al. 2024): loosen what the target finds likely enough for how undecided it is.

    The defaults are those of the authors' code, which advises delta = sqrt(epsilon)."""

    type: Literal["typical"] = "typical"
    epsilon: float = Field(0.09, gt=0.0, le=1.0, description="a draft likelier than this passes")
    delta: float = Field(
        0.3, gt=0.0, le=1.0, description="so does one likelier than delta exp(-H), H the row's entropy in nats"
    )


VerifierParams = Annotated[
    OffParams | StrictParams | FlyParams | CsdParams | HybridParams | LossyParams | TypicalParams,
    Field(discriminator="type"),
]
