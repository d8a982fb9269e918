"""TokenBytes: what each token id contributes to the text, as bytes.

A token is a run of bytes, not of characters: one emoji may take four tokens. Working on bytes makes decoding and
stop strings incremental (a token's bytes never depend on its neighbours) and exact. Two families of vocabularies
are understood: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM: every byte is spelled as a printable character) and
SentencePiece BPE with byte fallback (Llama 2, Mistral: `▁` is a space, `<0xE2>` a byte).
"""

import json
import re
from collections.abc import Iterable
from typing import Any


class UnsupportedTokenizerError(ValueError):
    """The tokenizer's kind is not one whose tokens have bytes of their own."""


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 characters stand for themselves, the other 68 bytes for
    chr(256), chr(257), ... in order. Byte 32 (space) is therefore `Ġ` = chr(288)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Table token id -> bytes. Control tokens, and ids beyond the tokenizer's own, contribute nothing."""

    def __init__(self, table: Iterable[bytes], names: Iterable[str] = (), control_ids: Iterable[int] = ()) -> None:
        self._control = frozenset(control_ids)
        self._table = [b"" if index in self._control else data for index, data in enumerate(table)]
        self._names = list(names)
        self._showing: dict[frozenset[str], TokenBytes] = {}
        self.longest = max((len(data) for data in self._table), default=1) or 1

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, vocab_size: int, control_ids: frozenset[int]) -> "TokenBytes":
        """Read the vocabulary of a transformers fast tokenizer.

        vocab_size: the width of the model's logits, often padded beyond the tokenizer's own ids.
        UnsupportedTokenizerError if the tokenizer is neither byte-level nor SentencePiece with byte fallback.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedTokenizerError(
                f"{type(tokenizer).__name__} has no tokenizer.json; a fast tokenizer is needed"
            )
        spell = _speller(json.loads(backend.to_str()))
        table, names = [b""] * vocab_size, [""] * vocab_size
        for text, index in backend.get_vocab(with_added_tokens=False).items():
            if index < vocab_size:
                table[index], names[index] = spell(text), text
        for index, token in backend.get_added_tokens_decoder().items():
            if index < vocab_size:
                table[index], names[index] = token.content.encode(), token.content
        return cls(table, names, control_ids)

    def showing(self, names: frozenset[str]) -> "TokenBytes":
        """The same table, in which control tokens of these names are text; itself if there are none."""
        if names not in self._showing:
            shown = {index: self._names[index] for index in self._control if self._names[index] in names}
            table = (shown[index].encode() if index in shown else data for index, data in enumerate(self._table))
            rest = self._control - shown.keys()
            self._showing[names] = TokenBytes(table, self._names, rest) if shown else self
        return self._showing[names]

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, token_id: int) -> bytes:
        return self._table[token_id] if 0 <= token_id < len(self._table) else b""

    def bytes_of(self, token_id: int) -> list[int] | None:
        """A token's bytes as OpenAI lists them in logprobs; None for tokens that are not text."""
        data = self[token_id]
        return list(data) if data else None

    def name(self, token_id: int) -> str:
        """The vocabulary's own spelling (`Ġfox`); empty for ids beyond it."""
        return self._names[token_id] if 0 <= token_id < len(self._names) else ""

    def label(self, token_id: int) -> str:
        """The token as a string of its own: its text; `bytes:\\xe4\\xb8`, as OpenAI writes it, where its bytes alone
        are not valid UTF-8; the tokenizer's own name for a control token."""
        data = self[token_id]
        if not data:
            return self.name(token_id) or f"<token {token_id}>"
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _kinds(node: Any) -> set[str]:
    """Names of all components in one section of tokenizer.json (a decoder may be a sequence of others)."""
    if not isinstance(node, dict):
        return set()
    parts = [*node.get("decoders", []), *node.get("pretokenizers", [])]
    return {str(node.get("type"))}.union(*(_kinds(part) for part in parts))


def _speller(spec: dict[str, Any]) -> Any:
    """The function that turns a vocabulary entry into bytes, chosen by the decoder of tokenizer.json."""
    decoder = _kinds(spec.get("decoder"))
    if "ByteLevel" in decoder:
        return _byte_level()
    if "ByteFallback" in decoder or (spec.get("model", {}).get("byte_fallback") and decoder & {"Metaspace", "Replace"}):
        return _sentencepiece
    kind = ", ".join(sorted(decoder - {"None"})) or "none"
    raise UnsupportedTokenizerError(
        f"cannot tell the bytes of this tokenizer's tokens (decoder: {kind}); "
        "byte-level BPE and SentencePiece with byte fallback are supported"
    )


def _byte_level() -> Any:
    alphabet = byte_alphabet()

    def spell(text: str) -> bytes:
        try:
            return bytes([alphabet[character] for character in text])
        except KeyError:  # an entry that is not spelled in the alphabet stands for itself
            return text.encode()

    return spell


def _sentencepiece(text: str) -> bytes:
    byte = _BYTE_FALLBACK.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()
