"""Between two vocabularies: what is read is the text, and what comes back extends it."""

import functools
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from server.text.bridge import TextBridge
from server.text.spelling import DraftSpelling
from tests.tongues import TEXTS, bpe, draft_tongue, spelling, target_tongue, text_of

IM_START, IM_END = (target_tongue().tokenizer.convert_tokens_to_ids(name) for name in ("<|im_start|>", "<|im_end|>"))
PAD, DRAFT_END, START = (
    draft_tongue().tokenizer.convert_tokens_to_ids(name) for name in ("<pad>", "<|im_end|>", "<s>")
)
TARGET_IDS = st.integers(0, target_tongue().vocab_size - 1)
DRAFT_IDS = st.integers(0, draft_tongue().vocab_size - 1)
WORDS = st.text(st.sampled_from("the quick fox, 12\n\t  ()é你🎉<|>"), max_size=400)


@functools.cache
def bridge() -> TextBridge:
    return TextBridge(target_tongue(), draft_tongue())


def encode(text: str, tongue: DraftSpelling | None = None) -> list[int]:
    return list((tongue or target_tongue()).tokenizer.encode(text, add_special_tokens=False))


def read(tokens: list[int]) -> list[int]:
    reading = bridge().read()
    reading.push(tokens)
    return reading.settled + reading.open


@given(WORDS)
def test_a_reading_says_the_text(text: str) -> None:
    assert text_of(draft_tongue(), read(encode(text))).decode() == text


@given(st.lists(TARGET_IDS | st.sampled_from(encode(TEXTS[1] * 3)), max_size=300), st.data())
def test_a_reading_is_the_same_in_whatever_pieces_the_text_came(tokens: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=8)))
    reading, settled = bridge().read(), 0
    for begin, end in pairwise([0, *cuts, len(tokens)]):
        ahead = reading.ahead(tokens[begin:end])
        before = list(reading.settled)
        reading.push(tokens[begin:end])
        assert reading.settled[: len(before)] == before
        assert before + ahead == reading.settled + reading.open
        assert len(reading.settled) >= settled
        settled = len(reading.settled)
    assert reading.settled + reading.open == read(tokens)
    assert reading.taken == len(tokens)


def test_what_is_open_stays_short() -> None:
    words, endless = bridge().read(), bridge().read()
    words.push(encode("the quick brown fox " * 200))
    endless.push(encode("x" * 4000))
    assert len(text_of(draft_tongue(), words.open)) <= 64 + len("quick ")
    assert len(text_of(draft_tongue(), endless.open)) <= 257


def test_a_long_text_is_cut_into_the_tokens_that_it_has_as_a_whole() -> None:
    text = "the quick brown fox, once upon a time;\n    return first + second  # naïve\n" * 30
    assert read(encode(text)) == encode(text, draft_tongue())


def test_control_tokens_cross_by_name_and_the_rest_are_read_as_their_names() -> None:
    tokens = [IM_START, *encode("a dog"), IM_END, *encode("\n")]
    assert read(tokens) == [*encode("<|im_start|>a dog", draft_tongue()), DRAFT_END, *encode("\n", draft_tongue())]


def test_control_tokens_names_in_a_text_stay_text() -> None:
    typed = [token for part in ("<|im_", "end|>") for token in encode(part)]
    assert DRAFT_END not in read(typed)
    assert text_of(draft_tongue(), read(typed)) == b"<|im_end|>"


def test_bytes_that_make_no_character_are_read_as_the_replacement_and_unfinished_ones_not_yet() -> None:
    emoji = [
        token for byte in "🎉".encode() for token in range(420) if target_tongue().token_bytes[token] == bytes([byte])
    ]
    assert len(emoji) == 4
    assert text_of(draft_tongue(), read([*encode("a"), *emoji[:3]])) == b"a"
    assert text_of(draft_tongue(), read([*encode("a"), *emoji])).decode() == "a🎉"
    assert text_of(draft_tongue(), read([*emoji[:3], *encode("a")])).decode() == "\ufffda"
    assert text_of(draft_tongue(), read([*emoji[:3], IM_END])).decode() == "\ufffd"


@given(
    st.lists(TARGET_IDS | st.sampled_from(encode(TEXTS[0])), max_size=40),
    st.lists(DRAFT_IDS | st.sampled_from(encode(TEXTS[1], draft_tongue())), max_size=12),
)
def test_drafts_extend_the_texts_bytes_by_what_was_drafted(known: list[int], drafted: list[int]) -> None:
    crossed = bridge().cross(known, drafted)
    tokens = [one.token_id for one in crossed]
    ends = next((i for i, t in enumerate(drafted) if t in bridge().closing), None)
    said, text = text_of(draft_tongue(), drafted[:ends]), text_of(target_tongue(), tokens)
    unread = _unfinished(known)  # which the draft model has not read, and so has written itself
    if crossed:
        assert said.startswith(unread + text)
        assert _is_text(unread + text)
    for index, one in enumerate(crossed):
        sofar = unread + text_of(target_tongue(), tokens[: index + 1])
        assert 1 <= one.needed <= len(drafted)
        if target_tongue().token_bytes[one.token_id]:
            assert text_of(draft_tongue(), drafted[: one.needed]).startswith(sofar)
            assert not text_of(draft_tongue(), drafted[: one.needed - 1]).startswith(sofar)
        else:
            assert index == len(crossed) - 1
            assert unread + text == said


def _unfinished(known: list[int]) -> bytes:
    """Bytes of a character that is not complete at the end of a text."""
    data = b""
    for token in reversed(known):
        if not (piece := target_tongue().token_bytes[token]):
            break
        data = piece + data
    for size in range(min(3, len(data)), 0, -1):
        try:
            data[-size:].decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return data[-size:]
    return b""


@given(WORDS, st.integers(0, 400))
def test_what_is_drafted_as_the_text_goes_on_comes_back_as_its_tokens(text: str, cut: int) -> None:
    """Wherever a text is cut between two of its tokens, so that whatever follows begins a token."""
    tokens = encode(text)
    known = tokens[: cut % (len(tokens) + 1)]
    rest = text_of(target_tongue(), tokens[len(known) :])
    assume(_is_text(rest))
    crossed = bridge().cross(known, encode(rest.decode(), draft_tongue()))
    assert [one.token_id for one in crossed] == tokens[len(known) :]


def _is_text(data: bytes) -> bool:
    return data.decode(errors="ignore").encode() == data


def test_a_character_that_the_target_has_begun_is_drafted_to_its_end() -> None:
    """The draft model reads it when it is whole, and until then writes it anew."""
    begun, ended = encode("Ж")
    whole = encode("Ж", draft_tongue())
    assert [one.token_id for one in bridge().cross([*encode("a"), begun], whole)] == [ended]
    assert bridge().cross([*encode("a"), begun], whole)[0].needed == len(whole)
    assert bridge().cross([*encode("a"), begun], encode(" you", draft_tongue())) == []
    assert bridge().cross([*encode("a"), begun], [DRAFT_END]) == []


def test_an_end_crosses_behind_the_text_before_it() -> None:
    drafted = [*encode(" dog", draft_tongue()), DRAFT_END, *encode(" and", draft_tongue())]
    assert [one.token_id for one in bridge().cross(encode("the lazy"), drafted)] == [*encode(" dog"), IM_END]
    assert [one.token_id for one in bridge().cross(encode("the lazy"), [DRAFT_END])] == [IM_END]


@pytest.mark.parametrize("controls", [("<end>", "<eos>"), ("<eos>", "<end>")])
def test_the_drafts_end_is_the_targets_own_though_another_control_token_has_its_name(controls: tuple[str, str]) -> None:
    target, draft = bpe(420, controls, "<eos>"), bpe(330, ("<end>",), "<end>", corpus=2)
    [crossed] = TextBridge(target, draft).cross(encode("a", target), [draft.tokenizer.eos_token_id])
    assert crossed.token_id == target.tokenizer.eos_token_id


def test_nothing_is_proposed_where_the_target_has_a_token_across_the_seam() -> None:
    """It has just written `th` and not `the`."""
    known = [token for part in ("t", "h") for token in encode(part)]
    assert encode("the") == encode("the")[:1]
    assert bridge().cross(known, encode("e", draft_tongue())) == []


def test_tokens_that_mean_nothing_to_the_target_are_never_drafted() -> None:
    assert {PAD, START, draft_tongue().vocab_size - 1} <= set(bridge().unusable)
    assert DRAFT_END not in bridge().unusable
    assert not any(draft_tongue().token_bytes[token] for token in bridge().unusable)


def sentencepiece() -> DraftSpelling:
    """As Llama 2's: a start token and a space of its own before every text."""
    pieces = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "▁ab", "ab", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "ab")]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    return spelling(tokenizer, ("<unk>", "<s>", "</s>"))


def test_a_sentencepiece_draft_reads_its_start_token_and_no_space_that_is_not_there() -> None:
    llama = sentencepiece()
    across = TextBridge(target_tongue(), llama)
    reading = across.read()
    reading.push(encode("ab a"))
    assert reading.settled + reading.open == [1, *llama.tokenizer.convert_tokens_to_ids(["ab", "▁a"])]
    assert [one.token_id for one in across.cross(encode("a"), [6, 4, 2])] == [*encode(" aa"), IM_END]


@pytest.mark.parametrize("start", [True, False])
def test_a_sentencepiece_targets_start_token_is_the_drafts_own_or_nothing(start: bool) -> None:
    draft = sentencepiece() if start else bpe(330, ("<pad>", "<end>"), "<end>", corpus=2)
    reading = TextBridge(sentencepiece(), draft).read()
    reading.push([1, 8, 2])
    assert reading.settled + reading.open == ([1, 8, 2] if start else [*encode("ab", draft), 1])


def test_a_vocabulary_crossed_with_itself_changes_nothing() -> None:
    tongue = bpe(420, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "<|im_end|>")
    across, tokens = TextBridge(tongue, tongue), encode(" ".join(TEXTS))
    reading = across.read()
    reading.push(tokens)
    assert reading.settled + reading.open == tokens
    assert [one.token_id for one in across.cross(tokens[:20], tokens[20:])] == tokens[20:]
