"""A made-up vocabulary for the tiny random models, grammars over it, and the slow obvious way to follow one."""

import functools
import json
from collections.abc import Iterable, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from core.grammar import Grammar
from tests.tiny import EOS, VOCAB

CONTROL = 3  # ids 0, 1 and EOS = 2 are no text
_PIECES = ['{"', '":', '",', '"}', '", "', "true", "false", "null", "ab", "abc", "ba", "xyz", "10", "42", "007"]


@functools.cache
def token_table() -> list[bytes]:
    """The bytes of every id: control tokens, all printable characters, pieces of JSON, pairs of letters."""
    texts = [chr(code) for code in range(0x20, 0x7F)] + ["\n"] + _PIECES
    pairs = (a + b for a in "abcdefghij0123456789" for b in "abcdefghij")
    texts += [pair for pair in pairs if pair not in texts][: VOCAB - CONTROL - len(texts)]
    return [b"<0>", b"<1>", b"<2>", *(text.encode() for text in texts)]


def text_of(token_ids: Iterable[int]) -> str:
    return b"".join(token_table()[token] for token in token_ids if token >= CONTROL).decode()


def ids_of(text: str) -> list[int]:
    """The text by longest pieces first."""
    table = {data: index for index, data in enumerate(token_table()) if index >= CONTROL}
    ids, data = [], text.encode()
    while data:
        piece = max((piece for piece in table if data.startswith(piece)), key=len)
        ids.append(table[piece])
        data = data[len(piece) :]
    return ids


class _Vocabulary:
    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = VOCAB  # "may end here"
    special_token_ids = (0, 1, 2, VOCAB)

    def __init__(self) -> None:
        self.tokens = [*token_table(), b"<end>"]

    def __call__(self, text: str) -> list[int]:
        return ids_of(text)


@functools.cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer(_Vocabulary())


@functools.cache
def beginning(lark: str) -> LLMatcher:
    matcher = unshared(lark)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def unshared(lark: str, limits: LLParserLimits | None = None) -> LLMatcher:
    return LLMatcher(tokenizer(), lark, log_level=0, limits=limits)


def json_lark(schema: dict[str, object]) -> str:
    options = {"whitespace_pattern": " ", "coerce_one_of": False}
    return "start: %json " + json.dumps({**schema, "x-guidance": options})


def regex_lark(pattern: str) -> str:
    grammars: str = LLMatcher.grammar_from_regex(pattern)
    return str(json.loads(grammars)["grammars"][0]["lark_grammar"])


def grammar(lark: str, closing: Iterable[int] = (EOS,)) -> Grammar:
    return Grammar(beginning(lark), lambda: unshared(lark), VOCAB, closing, (EOS,))


def limited(lark: str, limits: LLParserLimits, start: LLMatcher | None = None) -> Grammar:
    """start: a matcher that others use too; one of its own if None."""
    return Grammar(start or unshared(lark, limits), lambda: unshared(lark, limits), VOCAB, (EOS,), (EOS,))


def legal_after(lark: str, tokens: Sequence[int], closing: Iterable[int] = (EOS,)) -> set[int] | None:
    """The tokens that may follow, by a fresh matcher that is led there; None if the tokens themselves are illegal."""
    matcher = beginning(lark).deep_copy()
    for token in tokens:
        if not matcher.try_consume_tokens([token]):
            return None
    if matcher.is_stopped():  # complete, and nothing may follow
        return set(closing) or {EOS}
    mask = matcher.compute_bitmask()
    legal = {token for token in range(VOCAB) if mask[token // 8] >> token % 8 & 1}
    if mask[VOCAB // 8] >> VOCAB % 8 & 1:
        legal |= set(closing)
        if not legal:
            return {EOS}
    return legal


def complete(lark: str, tokens: Sequence[int]) -> bool:
    """Whether the tokens are a whole answer."""
    matcher = beginning(lark).deep_copy()
    return matcher.try_consume_tokens(list(tokens)) == len(tokens) and matcher.is_accepting()
