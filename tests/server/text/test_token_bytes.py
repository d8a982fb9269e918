import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from server.text.token_bytes import TokenBytes, UnsupportedTokenizerError, byte_alphabet
from tests.server.serving import PADDED_VOCAB, control_ids, tokenizer


def table() -> TokenBytes:
    return TokenBytes.from_tokenizer(tokenizer(), PADDED_VOCAB, control_ids())


def test_the_byte_alphabet_is_the_tokenizers_own() -> None:
    alphabet = byte_alphabet()
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    assert alphabet["Ġ"] == ord(" ")


@pytest.mark.parametrize(
    "text", ["the quick brown fox", " naïve café\n\t", "你好 🎉👨\u200d👩", "e\u0301 \u202e \x00\x1b"]
)
def test_bytes_of_a_texts_tokens_spell_the_text(text: str) -> None:
    tokens = tokenizer().encode(text, add_special_tokens=False)
    assert b"".join(table()[token] for token in tokens).decode() == text


def test_control_tokens_and_padding_have_no_bytes() -> None:
    for token in [*control_ids(), PADDED_VOCAB - 1, PADDED_VOCAB + 5, -1]:
        assert table()[token] == b""
        assert table().bytes_of(token) is None
    tag = tokenizer().convert_tokens_to_ids("<tool_call>")
    assert table()[tag] == b"<tool_call>"


def test_labels_tell_tokens_apart() -> None:
    names = table()
    labels = [names.label(token) for token in range(PADDED_VOCAB)]
    assert len(set(labels)) == PADDED_VOCAB
    assert names.label(tokenizer().convert_tokens_to_ids("<|im_end|>")) == "<|im_end|>"
    high = next(token for token in range(PADDED_VOCAB) if names[token] == b"\xe4")
    assert names.label(high) == "bytes:\\xe4"
    assert names.label(PADDED_VOCAB - 1) == f"<token {PADDED_VOCAB - 1}>"


def sentencepiece() -> PreTrainedTokenizerFast:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "▁the": 4, "a": 5, "▁▁": 6}
    vocab |= {f"<0x{byte:02X}>": 7 + byte for byte in range(256)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def test_sentencepiece_tokens_are_spelled_with_spaces_and_bytes() -> None:
    names = TokenBytes.from_tokenizer(sentencepiece(), 300, frozenset({0, 1, 2}))
    assert names[4] == b" the"
    assert names[6] == b"  "
    assert names[7 + 0xE4] == b"\xe4"
    assert names[1] == b""


def test_other_tokenizers_are_refused_by_name() -> None:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedTokenizerError, match="WordPiece"):
        TokenBytes.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), 2, frozenset())
    with pytest.raises(UnsupportedTokenizerError, match="fast tokenizer"):
        TokenBytes.from_tokenizer(object(), 2, frozenset())
