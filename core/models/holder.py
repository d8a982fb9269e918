"""Holder: whoever holds blocks of a BlockPool."""

from typing import Protocol

from core.sequence import GenerationRequest


class Holder(Protocol):
    """Who holds blocks for its tokens: a Sequence, or its text in a draft model's own tokens. The fields are as in
    Sequence."""

    blocks: list[int]
    block_hashes: list[bytes]
    target_tokens: int
    draft_tokens: int

    @property
    def request(self) -> GenerationRequest: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def prompt_rows_owed(self) -> range: ...
