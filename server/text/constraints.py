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
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache, partial
from threading import BoundedSemaphore, Lock
from typing import Any, TypeVar, cast

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from core.grammar import Grammar
from server.text.control_strings import is_markup
from server.text.token_bytes import TokenBytes

JSON_OPTIONS = {"whitespace_pattern": r" |\n {0,24}", "coerce_one_of": False, "lenient": False}
"""How llguidance is to read a schema, for its `x-guidance`."""

_REFUSALS = 256  # kept
_PATIENCE = 5.0  # seconds
# llguidance recurses along rules that lead to rules; 128 KiB of them take some 100 MB, of which the system gives only
# what is used.
_STACK_BYTES = 512 << 20
_stack_size = Lock()  # the setting is the process's
_running = BoundedSemaphore(4)
T = TypeVar("T")
# llguidance's own limits but for two, lest `a{1000000}` hold up a round for seconds and one answer grow its lexer to
# hundreds of megabytes: here a tenth of a second to make the lexer, 15 ms a mask, and 100 MB.
_PARSER_LIMITS = LLParserLimits(initial_lexer_fuel=200_000, max_lexer_states=50_000, verbose_errors=False)
# "Divisible by n" is an automaton of n states, zeros at n's end aside; for 999983 that takes half a minute.
_MOST_DIVISOR_STATES = 10_000


class ConstraintError(ValueError):
    """The constraint cannot be compiled; the message is fit for the client."""


class ConstraintsBusyError(Exception):
    """Other constraints, which take very long, are still being compiled."""


class Constraint:
    """A compiled constraint, for all answers to one request."""

    def __init__(
        self,
        matcher: LLMatcher,
        renew: Callable[[], LLMatcher],
        accept_id: int,
        eos_token_ids: frozenset[int],
        is_text: Callable[[int], bool],
    ) -> None:
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

    def json_schema(self, schema: dict[str, Any], around: str | None = None) -> Constraint:
        """What the schema describes. ConstraintError for keywords that llguidance cannot enforce.

        around, here and below: a Lark grammar of the whole answer, in which the constraint is `@answer`.
        """
        _check_divisors(schema)
        return self._answer({"json_schema": {**schema, "x-guidance": JSON_OPTIONS}}, around)

    def json_object(self, around: str | None = None) -> Constraint:
        """Any JSON object."""
        return self.json_schema({"type": "object"}, around)

    def regex(self, pattern: str, around: str | None = None) -> Constraint:
        """All of it matches, in the syntax of Rust's regex crate without look-around."""
        [grammar] = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
        return self._answer({"lark_grammar": grammar["lark_grammar"]}, around)

    def choice(self, choices: Sequence[str], around: str | None = None) -> Constraint:
        """One of the strings, of which there is at least one."""
        return self.lark("start: " + " | ".join(json.dumps(choice) for choice in choices), around)

    def grammar(self, text: str, around: str | None = None) -> Constraint:
        """A context-free grammar: Lark with llguidance's extensions, or GBNF (rules written `name ::= ...`)."""
        if "::=" in text:
            try:
                text = any_to_lark(text)
            except Exception as error:  # its parser raises whatever comes
                raise ConstraintError(str(error) or "this is no GBNF") from error
        return self.lark(text, around)

    def lark(self, text: str, around: str | None = None) -> Constraint:
        """A grammar in Lark as llguidance reads it; `%json {...}` embeds a schema, `<name>` or `<[id]>` one token."""
        return self._answer({"lark_grammar": text}, around)

    def _answer(self, grammar: dict[str, Any], around: str | None) -> Constraint:
        grammars = [{"name": "answer", **grammar}]
        if around is not None:
            grammars.insert(0, {"lark_grammar": around})
        text = json.dumps({"grammars": grammars})
        refusal = self._refusal(hashlib.sha256(text.encode()).digest())
        with refusal.lock:  # what is refused is found out once, however many ask
            if refusal.reason is not None:
                raise ConstraintError(refusal.reason)
            try:
                return _apart(partial(self._compile, text), _PATIENCE)
            except ConstraintError as error:
                refusal.reason = str(error)
                raise

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
        renew = partial(_apart, partial(self._matcher, grammar))
        return Constraint(matcher, renew, self._tokenizer.eos_token, self._eos_token_ids, self._is_text)

    def _matcher(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=_PARSER_LIMITS)


def _apart(work: Callable[[], T], patience: float | None = None) -> T:
    """work() in a thread of its own, with a stack for any depth of rules that fits a request.

    ConstraintError if it takes more than `patience` seconds; nothing can stop it, but nobody waits for it either.
    ConstraintsBusyError if too much of the kind still runs.
    """
    if patience is not None and not _running.acquire(timeout=patience):
        raise ConstraintsBusyError
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        finally:
            if patience is not None:
                _running.release()

    with _stack_size:
        before = threading.stack_size(_STACK_BYTES)
        try:
            threading.Thread(target=run, name="constraint", daemon=True).start()
        finally:
            threading.stack_size(before)
    try:
        return future.result(patience)
    except TimeoutError:
        raise ConstraintError("it takes too long to compile") from None


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


def _reason(error: str) -> str:
    """llguidance's message without its traces; that nothing can ever match it says only by a code."""
    text = " ".join(error.partition("<non-verbose")[0].split()).rstrip(".")
    return "no answer can satisfy it" if text.startswith("NoExtension") else text or "it cannot be compiled"


def _check_divisors(schema: Any) -> None:
    """ConstraintError if a multipleOf, anywhere in the schema, would take too long to compile."""
    if isinstance(schema, list):
        for item in schema:
            _check_divisors(item)
    if isinstance(schema, dict):
        divisor = schema.get("multipleOf")
        if isinstance(divisor, int | float) and not isinstance(divisor, bool):
            digits = "".join(map(str, Decimal(str(divisor)).normalize().as_tuple().digits))
            if int(digits) > _MOST_DIVISOR_STATES:
                raise ConstraintError(f"multipleOf {divisor} has too many digits to be enforced")
        for value in schema.values():
            _check_divisors(value)


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
