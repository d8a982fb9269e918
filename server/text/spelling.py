"""Spelling: what of a model's tokenizer its texts are read and written with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from core.models.model_config import read_config
from core.models.special_tokens import end_and_control_ids
from server.text.token_bytes import TokenBytes


class Spelling(Protocol):
    """As in server.language.Language, which is one."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...
    @property
    def control_token_ids(self) -> frozenset[int]: ...
    @property
    def token_bytes(self) -> TokenBytes: ...


@dataclass(frozen=True, slots=True)
class DraftSpelling:
    """A draft model's, which serves nobody and so needs no more of a language."""

    tokenizer: Any
    vocab_size: int
    eos_token_ids: frozenset[int]
    control_token_ids: frozenset[int]
    token_bytes: TokenBytes

    @classmethod
    def read(cls, tokenizer: Any, folder: Path) -> Self:
        """UnsupportedTokenizerError if its tokens' bytes cannot be told."""
        eos_ids, control_ids = end_and_control_ids(folder)
        vocab_size = int(read_config(folder).vocab_size)
        token_bytes = TokenBytes.from_tokenizer(tokenizer, vocab_size, control_ids)
        return cls(tokenizer, vocab_size, eos_ids, control_ids, token_bytes)
