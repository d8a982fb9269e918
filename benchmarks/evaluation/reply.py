"""What is kept of one answer, and whom it is asked of."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.answers import Answer, Speculated
from benchmarks.evaluation.items import Item
from benchmarks.matrix import Setting


class TooLongError(Exception):
    """An item's prompt leaves no room for an answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """tokens: how many; prompt_tokens: of the prompt. cut: whether it ended because it could not be longer. speedup: as
    the server estimates it from its rounds; None where it does not."""

    text: str
    tokens: int
    prompt_tokens: int
    cut: bool
    speculated: Speculated = field(default_factory=Speculated)
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One item under one setting and seed."""

    item: Item
    setting: Setting
    seed: int


class Asker(Protocol):
    """Who answers: the engine in this process, or a server. identity: what decides answers beside the request, ready
    for JSON. notes: sentences about what settings will not do here."""

    notes: list[str]
    measures_time: bool

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def particular(self, fields: Mapping[str, Any]) -> Any:
        """What decides the answers of requests with these fields, besides; None if nothing does."""
        ...

    async def check(self, setting: Setting, sampling: Mapping[str, Any]) -> None:
        """ApiError or RefusedError if its requests would be refused."""
        ...

    async def ask(self, prompt: str, fields: Mapping[str, Any], max_tokens: int) -> tuple[Reply, Answer | None]:
        """The answer, and its times if they are known. TooLongError for a prompt too long."""
        ...

    async def prime(self, prompts: list[str]) -> None:
        """See to it that reading these prompts costs the settings that follow alike."""
        ...


def fingerprint(*parts: Any) -> str:
    """Of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
