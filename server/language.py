"""Language: what turns text into tokens and back, made of a model's files alone, while its weights are still read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from core.models.model_config import read_config
from core.models.special_tokens import end_and_control_ids
from server.text.constraints import Constraints
from server.text.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class Language:
    """tokenizer: transformers' (a fast one), whose chat template is used if it has one. vocab_size: width of the
    logits; ids in requests must be below it. eos_token_ids: end an answer unless the request ignores them.
    control_token_ids: tokens that never show up in text (special added tokens and EOS)."""

    tokenizer: Any
    vocab_size: int
    eos_token_ids: frozenset[int]
    control_token_ids: frozenset[int]
    token_bytes: TokenBytes
    constraints: Constraints

    @classmethod
    def of(
        cls, tokenizer: Any, vocab_size: int, eos_token_ids: frozenset[int], control_token_ids: frozenset[int]
    ) -> Self:
        """A second for a large vocabulary. UnsupportedTokenizerError if its tokens' bytes cannot be told."""
        token_bytes = TokenBytes.from_tokenizer(tokenizer, vocab_size, control_token_ids)
        constraints = Constraints.build(tokenizer, token_bytes, control_token_ids, eos_token_ids)
        return cls(tokenizer, vocab_size, eos_token_ids, control_token_ids, token_bytes, constraints)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Of a model folder, with another second for its tokenizer."""
        eos_ids, control_ids = end_and_control_ids(folder)
        return cls.of(load_tokenizer(folder), int(read_config(folder).vocab_size), eos_ids, control_ids)


def load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
