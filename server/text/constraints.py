"""Constraints: from a JSON schema, a regular expression, choices or a Lark grammar to what core can follow.

llguidance compiles them against the model's own tokens. Its tokenizer is built from the same table that text is
decoded with, so that what a mask allows and what a client reads are one thing. Control tokens and tags such as
`<tool_call>` are no text: nothing but a grammar that names them (`<tool_call>`, or `<[151657]>` by id) lets them in.

JSON may have a space, or a line break with at most 24 spaces, once, wherever JSON allows white space but before and
after the whole: a model that falls in love with blanks could otherwise fill its answer with them.

A compiled constraint belongs to one request. llguidance lets all copies of a matcher share what it finds out about
its grammar, until that is too much for all of them; and compiling again costs a millisecond, or as much as a few
tokens for the biggest schemas. Only refusals are kept.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Lock
from typing import Any, cast

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from core.grammar import Grammar
from server.text.compiling import PATIENCE, apart
from server.text.control_strings import is_markup
from server.text.schema_cost import MOST_RULES, CostError, check_lark_cost, check_pattern_cost, check_schema_cost
from server.text.schema_reading import readable
from server.text.token_bytes import TokenBytes

JSON_OPTIONS = {"whitespace_pattern": r" |\n {0,24}", "coerce_one_of": False, "lenient": False}
"""For `x-guidance`: how llguidance is to read a schema."""

_REFUSALS = 256  # kept
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)
# llguidance's own limits but for two, lest `a{1000000}` hold up a round for seconds and one answer grow its lexer to
# hundreds of megabytes: here a tenth of a second to make the lexer, 15 ms a mask, and 100 MB.
_PARSER_LIMITS = LLParserLimits(initial_lexer_fuel=200_000, max_lexer_states=50_000, verbose_errors=False)


class ConstraintError(ValueError):
    """The constraint cannot be compiled; the message is fit for the client."""


class Constraint:
    """A compiled constraint, for all answers to one request. unenforced: what of it is not, in words."""

    def __init__(
        self,
        matcher: LLMatcher,
        renew: Callable[[], LLMatcher],
        accept_id: int,
        eos_token_ids: frozenset[int],
        is_text: Callable[[int], bool],
        unenforced: tuple[str, ...] = (),
    ) -> None:
        self.unenforced = unenforced
        self._matcher = matcher
        self._renew = renew
        self._accept_id = accept_id
        self._eos_token_ids = eos_token_ids
        self._is_text = is_text

    def start(self, end_token_ids: Iterable[int]) -> Grammar:
        """The beginning of one answer; takes microseconds. end_token_ids: the request's. Those that are text do not
        count as an end here: behind a complete answer they would spoil it."""
        closing = [token for token in end_token_ids if not self._is_text(token)]
        return Grammar(self._matcher, self._renew, self._accept_id, closing, self._eos_token_ids)


class Constraints:
    """Compiles constraints for one model; safe to use from several threads."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        eos_token_ids: frozenset[int],
        is_text: Callable[[int], bool],
        tags: Mapping[str, int],
    ) -> None:
        self._tokenizer = tokenizer
        self._tags = tags
        self._eos_token_ids = eos_token_ids
        self._is_text = is_text
        self._refusal = lru_cache(_REFUSALS)(lambda digest: _Refusal())

    @classmethod
    def build(
        cls,
        tokenizer: Any,
        token_bytes: TokenBytes,
        control_ids: frozenset[int],
        eos_token_ids: frozenset[int],
    ) -> "Constraints":
        """For the served tokenizer (a transformers fast one); takes half a second for 150,000 tokens."""
        vocabulary = _Vocabulary(tokenizer.backend_tokenizer, token_bytes, control_ids)
        llguidance = LLTokenizer(cast(TokenizerWrapper, vocabulary))  # asked for by duck typing
        vocabulary.greedy = llguidance.greedy_tokenize
        return cls(llguidance, eos_token_ids, lambda token_id: bool(token_bytes[token_id]), vocabulary.tags)

    def token_of(self, tag: str) -> int | None:
        """The token that stands for a control string or tag; None if a grammar has to spell it as text."""
        return self._tags.get(tag)

    def json_schema(self, schema: dict[str, Any], around: str | None = None, lenient: bool = False) -> Constraint:
        """What the schema describes. ConstraintError for keywords that llguidance cannot enforce, unless lenient:
        then the constraint's `unenforced` tells of them.

        around, here and below: a Lark grammar of the whole answer, in which the constraint is `@answer`.
        """
        _checked(check_schema_cost, schema)
        dropped: list[str] = []
        options = {**JSON_OPTIONS, "lenient": lenient}
        schema = {**readable(schema, lenient, dropped), "x-guidance": options}
        constraint = self._answer({"json_schema": schema}, around)
        constraint.unenforced = (*dropped, *constraint.unenforced)
        return constraint

    def json_object(self, around: str | None = None) -> Constraint:
        """Any JSON object."""
        return self.json_schema({"type": "object"}, around)

    def regex(self, pattern: str, around: str | None = None) -> Constraint:
        """All of it matches, in the syntax of Rust's regex crate without look-around."""
        _checked(check_pattern_cost, pattern)
        [grammar] = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
        return self._answer({"lark_grammar": grammar["lark_grammar"]}, around)

    def choice(self, choices: Sequence[str], around: str | None = None) -> Constraint:
        """One of the strings, of which there is at least one."""
        alternatives = " | ".join(json.dumps(choice) for choice in choices)
        return self._answer({"lark_grammar": f"start: {alternatives}"}, around)

    def grammar(self, text: str, around: str | None = None) -> Constraint:
        """A context-free grammar: Lark with llguidance's extensions, or GBNF (rules written `name ::= ...`)."""
        if _GBNF_RULE.search(text):
            if len(_GBNF_RULE.findall(text)) > MOST_RULES:
                raise ConstraintError(f"a grammar may have at most {MOST_RULES} rules")
            try:
                text = any_to_lark(text)
            except Exception as error:  # its parser raises whatever comes
                raise ConstraintError(str(error) or "this is no GBNF") from error
        return self.lark(text, around)

    def lark(self, text: str, around: str | None = None) -> Constraint:
        """A grammar in Lark as llguidance reads it; `%json {...}` embeds a schema, `<name>` or `<[id]>` one token."""
        _checked(check_lark_cost, text)
        return self._answer({"lark_grammar": text}, around)

    def _answer(self, grammar: dict[str, Any], around: str | None) -> Constraint:
        grammars = [{"name": "answer", **grammar}]
        if around is not None:
            _checked(check_lark_cost, around)
            grammars.insert(0, {"lark_grammar": around})
        text = json.dumps({"grammars": grammars})
        refusal = self._refusal(hashlib.sha256(text.encode()).digest())
        with refusal.lock:  # what is refused is found out once, however many ask
            if refusal.reason is not None:
                raise ConstraintError(refusal.reason)
            try:
                return apart(partial(self._compile, text), PATIENCE)
            except ConstraintError as error:
                refusal.reason = str(error)
                raise
            except TimeoutError:
                refusal.reason = "it takes too long to compile"
                raise ConstraintError(refusal.reason) from None

    def _compile(self, grammar: str) -> Constraint:
        matcher = self._matcher(grammar)
        if not matcher.is_error():
            # Much is found out, and paid for, only with the first mask or token: here rather than amid a round.
            mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            legal = int(np.unpackbits(mask, bitorder="little").argmax())
            trial = matcher.deep_copy()
            if not matcher.is_error() and (not trial.consume_token(legal) or _fails(trial)):
                matcher = trial
        if matcher.is_error():
            raise ConstraintError(_reason(matcher.get_error()))
        renew = partial(apart, partial(self._matcher, grammar))
        unenforced = tuple(warning.rstrip(".") for warning in matcher.get_grammar_warnings())
        return Constraint(matcher, renew, self._tokenizer.eos_token, self._eos_token_ids, self._is_text, unenforced)

    def _matcher(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=_PARSER_LIMITS)


@dataclass(slots=True)
class _Refusal:
    """Of one grammar; reason: None while it has not been refused."""

    reason: str | None = None
    lock: Lock = field(default_factory=Lock)


def _fails(matcher: LLMatcher) -> bool:
    """Whether it meets a limit at the place behind the first token, where many alternatives begin."""
    if not matcher.is_stopped():
        matcher.compute_bitmask()
    return matcher.is_error()


def _checked(check: Callable[[Any], None], given: Any) -> None:
    try:
        check(given)
    except CostError as error:
        raise ConstraintError(str(error)) from None


def _reason(error: str) -> str:
    """llguidance's message without its traces; that nothing can ever match it says only by a code."""
    text = " ".join(error.partition("<non-verbose")[0].split()).rstrip(".")
    return "no answer can satisfy it" if text.startswith("NoExtension") else text or "it cannot be compiled"


class _Vocabulary:
    """The served tokenizer as llguidance wants it: the bytes of every id, which ids are no text, and how text is
    tokenised. One id more than the model has says "may end here"."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, backend: Any, token_bytes: TokenBytes, control_ids: frozenset[int]) -> None:
        self._backend = backend
        self._bytes = token_bytes
        self.tokens = [token_bytes[index] for index in range(len(token_bytes))]
        special = set(control_ids)
        self.tags: dict[str, int] = {}
        for index, token in backend.get_added_tokens_decoder().items():
            if index < len(self.tokens) and (index in control_ids or token.special or is_markup(token.content)):
                special.add(index)
                self.tokens[index] = token.content.encode()
                self.tags[token.content] = index
        self.eos_token_id = len(self.tokens)
        self.tokens.append(b"<|accept|>")
        self.special_token_ids = [*special, self.eos_token_id]
        self._special = frozenset(special)
        self.greedy: Callable[[str], list[int]] = lambda text: []

    def __call__(self, text: str) -> list[int]:
        """Where a constraint leaves no choice, llguidance wants the tokens that the model itself would expect."""
        for prefix in ("", "\x02"):  # a tokenizer that puts a space before every text does so before the prefix
            ids: list[int] = self._backend.encode(prefix + text, add_special_tokens=False).ids
            spelled, tail = b"", len(ids)
            while tail and len(spelled) < len(text.encode()):
                tail -= 1
                spelled = self._bytes[ids[tail]] + spelled
            if spelled == text.encode() and self._special.isdisjoint(ids[tail:]) and (prefix or tail == 0):
                return ids[tail:]
        return self.greedy(text)
