"""Settings of the two models: where their weights come from, where and as what they run, what they should be."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from core.models.architectures import SUPPORTED
from server.settings_base import Section, conflict
from server.weights.sources import ModelSource, source_from_text

# Spelt out, since a Literal must be; tests hold them against core's tables, which import torch.
Weights = Literal["fp16", "int8_split", "int8_mixed", "int8", "float32", "bfloat16"]
CPU_ONLY = ("int8_split", "int8_mixed", "int8")
Attention = Literal["auto", "sdpa", "flash_attn", "paged_cpu"]
Graphs = Literal["auto", "off"]

_DEVICE = re.compile(r"auto|cpu|cuda(:(0|[1-9]\d?))?")  # torch keeps the number in a byte: cuda:300 would be cuda:44


def _device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise ValueError("should be auto, cpu, cuda or cuda:N, such as cuda:1")
    return value


def _dense(architecture: str) -> str:
    if architecture not in SUPPORTED:
        raise ValueError("should be an architecture that runs here, as config.json names it, such as LlamaForCausalLM")
    if SUPPORTED[architecture].experts:
        raise ValueError("has experts, which these keys do not describe: leave expect out")
    return architecture


class ExpectedConfig(Section):
    """What a dense model's config.json should say, by its own names.

    It lets `config check` compute a model's memory before its files are fetched. Loading compares each key with
    the real file, so a wrong one does not live long. A key left out stands for the architecture's default until the
    file is there, and is not compared.
    """

    architecture: Annotated[str, AfterValidator(_dense)]
    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    intermediate_size: int | None = Field(None, ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int | None = Field(None, ge=1)
    head_dim: int | None = Field(None, ge=1)
    tie_word_embeddings: bool | None = None


class ModelSettings(ModelSource, Section):
    """A model and how it runs.

    device: `auto` is the first CUDA device if torch sees one, else the CPU. weights: what linear layers are held
    as; by default bfloat16 on CUDA. tp_plan: `auto` shares the model between the processes that torchrun starts;
    one process simply loads it. attention: `auto` is flash-attn on a GPU where it is installed and fits, our own on a
    CPU, else torch's.
    cuda_graphs: `auto` records forwards of small batches on a GPU and replays them, if the model can be recorded; on
    a CPU, which has none, `device = auto` makes it nothing.
    """

    device: Annotated[str, AfterValidator(_device)] = "auto"
    weights: Weights | None = None
    tp_plan: Literal["auto"] | None = None
    attention: Attention = "auto"
    cuda_graphs: Graphs = "off"
    expect: ExpectedConfig | None = None

    @model_validator(mode="after")
    def _fits_its_device(self) -> Self:
        on_cuda = self.device.startswith("cuda")
        if on_cuda and self.weights in CPU_ONLY:
            raise conflict(
                f"weights = {self.weights} needs device = cpu, not {self.device}: use bfloat16, fp16 or float32 there"
            )
        if self.device == "cpu" and self.cuda_graphs == "auto":
            raise conflict("cuda_graphs = auto needs a CUDA device, not device = cpu: leave it out there")
        if self.device == "cpu" and self.attention == "flash_attn":
            raise conflict("attention = flash_attn needs a CUDA device, not device = cpu: use auto or sdpa there")
        if self.attention == "paged_cpu" and (on_cuda or self.weights == "bfloat16"):
            unfit = f"weights = {self.weights}" if self.weights == "bfloat16" else f"device = {self.device}"
            raise conflict(
                f"attention = paged_cpu needs a CPU and float32 activations, not {unfit}: use auto or sdpa there"
            )
        if self.weights == "float32" and self.attention == "flash_attn":
            raise conflict("attention = flash_attn needs weights = bfloat16 or fp16, not float32: or use auto or sdpa")
        return self


class TargetSettings(ModelSettings):
    """The model whose answers are served. On a CPU its weights default to fp16, which is exact there."""


class DraftSettings(ModelSettings):
    """The small model that guesses ahead. On a CPU its weights default to int8: errors cost speed, never an answer.

    across_vocabularies: a model with another tokenizer than the target's may draft, through text; without it such a
    pair is refused at start-up, since it is more often a mistake than meant.
    """

    across_vocabularies: bool = False

    @field_validator("source", mode="before")
    @classmethod
    def _may_be_the_targets(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                source_from_text(value)
            except ValueError as error:
                raise ValueError(f"{error}, or target for the target's own files") from None
        return value


class ModelsSettings(Section):
    """draft: null for none; `source: target` for the target's own files, held as other weights."""

    target: TargetSettings
    draft: DraftSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _share_files(cls, data: Any) -> Any:
        draft, target = (data.get("draft"), data.get("target")) if isinstance(data, dict) else (None, None)
        if isinstance(draft, dict) and isinstance(target, dict) and draft.get("source") == "target":
            if not _is_valid(target):
                return {**data, "draft": None}  # what is shared is wrong, and said of the target, once
            if own := [key for key in ("sha256", "size", "expect") if draft.get(key) is not None]:
                raise conflict(f"draft.{own[0]} is that of the target where draft.source = target: leave it out there")
            shared = {key: target[key] for key in ("source", "sha256", "size", "expect") if key in target}
            name = f"{target['name']} (draft)" if "name" in target else None
            return {**data, "draft": {"name": name, **draft, **shared}}
        return data

    def items(self) -> list[tuple[str, ModelSettings]]:
        """The models there are, each with its key."""
        target: tuple[str, ModelSettings] = ("models.target", self.target)
        return [target] if self.draft is None else [target, ("models.draft", self.draft)]


def _is_valid(target: dict[str, Any]) -> bool:
    try:
        TargetSettings.model_validate(target)
    except ValidationError:
        return False
    return True
