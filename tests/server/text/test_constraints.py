"""Constraints: what compiles, what is refused and how, and which texts they let through."""

import json
import random
import threading
from typing import Any

import numpy as np
import pytest
from llguidance import LLParserLimits

from core.grammar import Grammar
from server.text.constraints import Constraint, ConstraintError, Constraints
from server.text.token_bytes import TokenBytes
from tests.server.serving import PADDED_VOCAB, control_ids, eos_ids, tokenizer


@pytest.fixture(scope="module")
def token_bytes() -> TokenBytes:
    return TokenBytes.from_tokenizer(tokenizer(), PADDED_VOCAB, control_ids())


@pytest.fixture(scope="module")
def constraints(token_bytes: TokenBytes) -> Constraints:
    return Constraints.build(tokenizer(), token_bytes, control_ids(), eos_ids())


def ids_of(text: str) -> list[int]:
    ids: list[int] = tokenizer().encode(text, add_special_tokens=False)
    return ids


def start(constraint: Constraint) -> Grammar:
    return constraint.start(eos_ids())


def allows(constraint: Constraint, text: str) -> bool:
    """Whether some way to write the text in tokens is legal and may end there. Where the next bytes are forced only
    the tokenizer's own way is, so all are tried."""
    table = TokenBytes.from_tokenizer(tokenizer(), PADDED_VOCAB, control_ids())
    place, end = start(constraint), min(eos_ids())

    def search(tokens: list[int], rest: bytes) -> bool:
        if not rest:
            return place.legal([*tokens, end]) > len(tokens) or place.ends_with(tokens)
        fitting = [token for token in range(PADDED_VOCAB) if table[token] and rest.startswith(table[token])]
        fitting.sort(key=lambda token: -len(table[token]))
        return any(
            place.legal([*tokens, token]) > len(tokens) and search([*tokens, token], rest[len(table[token]) :])
            for token in fitting
        )

    return search([], text.encode())


def test_a_schema_allows_what_it_describes(constraints: Constraints) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x", "é🎉"]}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    constraint = constraints.json_schema(schema)
    for value in ({"a": 1}, {"a": -20, "b": []}, {"a": 0, "b": ["x", "é🎉", "x"]}):
        assert allows(constraint, json.dumps(value, ensure_ascii=False))
        assert allows(constraint, json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        assert allows(constraint, json.dumps(value, ensure_ascii=False, indent=4))
    for text in ('{"b": []}', '{"a": 1, "c": 2}', '{"a": 1.5}', '{"a": "1"}', "[1]", "", '{"a": 1'):
        assert not allows(constraint, text)


def test_blanks_are_bounded_and_never_around_the_whole(constraints: Constraints) -> None:
    constraint = constraints.json_object()
    assert allows(constraint, '{"a":\n' + 24 * " " + "1}")
    for text in ('{"a":  1}', '{"a":\n' + 25 * " " + "1}", '{"a": \n1}', ' {"a":1}', '{"a":1} ', '{"a":\t1}'):
        assert not allows(constraint, text)


def test_json_object_is_any_object_and_nothing_else(constraints: Constraints) -> None:
    constraint = constraints.json_object()
    for text in ("{}", '{"a": {"b": [null, true, 1e5, "\\n é"]}}'):
        assert allows(constraint, text)
    for text in ("[]", '"a"', "1", "{a: 1}"):
        assert not allows(constraint, text)


def test_what_generators_write_is_enforced_as_far_as_it_can_be(constraints: Constraints) -> None:
    """zod's record and e-mail, pydantic's set and Decimal."""
    properties = {
        "record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}},
        "set": {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}},
        "decimal": {"type": "string", "pattern": "^(?!^[-+.]*$)[0-9]+$"},
        "propertyNames": {"type": "string", "format": "binary"},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    constraint = constraints.json_schema(schema, lenient=True)
    good = {"record": {"a": None}, "set": [1, 1], "decimal": "1", "propertyNames": "x"}
    assert allows(constraint, json.dumps(good))
    assert not allows(constraint, json.dumps({**good, "set": [3]}))
    told = " ".join(constraint.unenforced)
    for what in ("uniqueItems", "(?!", "binary"):
        assert what in told
        assert "propertyNames" not in told
    with pytest.raises(ConstraintError):
        constraints.json_schema(schema)
    assert constraints.json_schema(properties["record"]).unenforced == ()


def test_a_schema_cannot_loosen_how_it_is_read(constraints: Constraints) -> None:
    """`x-guidance` is llguidance's own door; it is not the client's."""
    schema = {"type": "object", "not": {}, "x-guidance": {"lenient": True, "whitespace_pattern": " *"}}
    with pytest.raises(ConstraintError, match="not"):
        constraints.json_schema(schema)


def test_schemas_that_refer_to_each_other_in_a_long_chain_compile(constraints: Constraints) -> None:
    """On a usual stack the compiler would end the process."""
    chain = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(2000)}
    schema = {"$defs": {**chain, "d2000": {"type": "null"}}, "$ref": "#/$defs/d0"}
    assert start(constraints.json_schema(schema)).legal(ids_of("[")) == 1


def test_what_compiles_for_too_long_is_refused(constraints: Constraints, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr("server.text.constraints.PATIENCE", 0.05)
    monkeypatch.setattr(constraints, "_compile", lambda text: release.wait(60))
    try:
        for _ in range(9):  # known as such from the second time on: no more than one is being compiled
            with pytest.raises(ConstraintError, match="too long"):
                constraints.regex("a{17}")
    finally:
        release.set()


def test_gbnf_is_told_by_its_rules(constraints: Constraints) -> None:
    assert allows(constraints.grammar('start: "a ::= b"'), "a ::= b")


def test_regex_matches_the_whole(constraints: Constraints) -> None:
    constraint = constraints.regex(r"(yes|no)/\d{2,3}\n?é*")
    for text in ("yes/12", "no/123\n", "no/12éé"):
        assert allows(constraint, text)
    for text in ("yes/1", "xyes/12", "yes/1234", "yes/12z"):
        assert not allows(constraint, text)


def test_choices_are_taken_literally(constraints: Constraints) -> None:
    choices = ['a "quoted" \\ one', "/[a-z]/", "é🎉\n", "yes", "yesterday"]
    constraint = constraints.choice(choices)
    assert all(allows(constraint, choice) for choice in choices)
    for text in ("a", "b", "ye", "yester", "yesyes"):
        assert not allows(constraint, text)


def test_grammars_may_be_lark_or_gbnf(constraints: Constraints) -> None:
    lark = constraints.grammar('start: greeting ", " NAME\ngreeting: "hello" | "hi"\nNAME: /[A-Z][a-z]+/')
    gbnf = constraints.grammar('root ::= greeting ", " name\ngreeting ::= "hello" | "hi"\nname ::= [A-Z] [a-z]+')
    for constraint in (lark, gbnf):
        assert allows(constraint, "hi, Ada")
        assert not allows(constraint, "hi, ada")


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("json_schema", {"type": "frob"}, "frob"),
        ("json_schema", {"type": "string", "format": "frob"}, "frob"),
        ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
        ("json_schema", {"if": {}, "then": {}}, "then"),
        ("json_schema", {"enum": []}, "Unsatisfiable"),
        ("json_schema", {"$ref": "#"}, "no answer can satisfy it"),
        ("json_schema", {"$ref": "https://example.com/schema"}, "example.com"),
        ("json_schema", {"properties": {"a": {"multipleOf": 999983}}}, "multipleOf 999983"),
        ("json_schema", {"anyOf": [{"multipleOf": 1234.5678}]}, "multipleOf 1234.5678"),
        ("json_schema", {"allOf": [{"type": "integer", "multipleOf": 9999}, {"multipleOf": 9998}]}, "multipleOf 999"),
        ("json_schema", {"properties": {f"p{i}": {} for i in range(501)}}, "at most 500 properties"),
        ("json_schema", {"properties": {f"p{i}": {} for i in range(50)}, "minProperties": 1}, "at most 40 properties"),
        ("json_schema", {"type": "string", "pattern": "a?" * 5000}, "at most 8192 bytes"),
        ("lark", 'start: %json {"type": "integer", "multipleOf": 999983}', "multipleOf 999983"),
        ("grammar", 'start: %json\n{"multipleOf": 9999, "anyOf": [{"multipleOf": 9998}]}', "multipleOf 999"),
        ("grammar", "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(3000)), "at most 1000 rules"),
        ("grammar", "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(3000)), "at most 1000 rules"),
        ("grammar", "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(30)) + 'T30: "a"?', "16384"),
        ("grammar", "start: /" + "a?" * 5000 + "/", "at most 8192 bytes"),
        ("regex", "a?" * 5000, "at most 8192 bytes"),
        ("regex", "a(", "unclosed group"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", "(?=a)a", "look-around"),
        ("regex", "a{1000000}", "too many"),
        ("grammar", "start: foo", "foo"),
        ("grammar", 'root: "a"', "start"),
        ("grammar", "root ::= (", "Expected"),
        ("grammar", "start: <no_such_token>", "no_such_token"),
        ("grammar", "start: " + 5000 * "(" + '"a"' + 5000 * ")", "nested"),
        ("grammar", '{"grammars": [{"json_schema": {}}]}', ""),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_one_line(
    constraints: Constraints, kind: str, given: Any, says: str
) -> None:
    with pytest.raises(ConstraintError) as refused:
        getattr(constraints, kind)(given)
    message = str(refused.value)
    assert says in message
    assert "\n" not in message
    assert "<non-verbose" not in message


def test_harmless_keywords_and_numbers_are_fine(constraints: Constraints) -> None:
    schema = {"title": "T", "description": "d", "default": 1, "examples": [1], "type": "number", "multipleOf": 0.25}
    assert allows(constraints.json_schema(schema), "1.75")


def test_control_tokens_and_tags_are_no_text(constraints: Constraints, token_bytes: TokenBytes) -> None:
    """`.*` may spell a tag letter by letter but neither takes its token nor a control token before the end."""
    fast = tokenizer()
    place = start(constraints.regex("(.|\n)*"))
    for text in ("<tool_call>", "<|im_start|>"):
        assert place.legal([fast.convert_tokens_to_ids(text)]) == 0
    assert place.legal([fast.convert_tokens_to_ids("<|im_end|>")]) == 1  # that is the end
    padding = [PADDED_VOCAB - 1]
    assert place.legal(padding) == 0


def test_a_grammar_can_name_a_tag(constraints: Constraints) -> None:
    tag = tokenizer().convert_tokens_to_ids("<tool_call>")
    assert constraints.token_of("<tool_call>") == tag
    for spelled in ("<tool_call>", f"<[{tag}]>"):
        place = start(constraints.lark(f'start: {spelled} "a"'))
        assert place.legal([tag, *ids_of("a")]) == 2
        assert place.legal(ids_of("<")) == 0


def test_a_constraint_can_stand_inside_a_larger_grammar(constraints: Constraints) -> None:
    constraint = constraints.json_schema({"type": "integer"}, around='start: "so: " @answer "!"')
    assert allows(constraint, "so: -12!")
    assert not allows(constraint, "-12")
    assert not allows(constraint, "so: x!")


def test_a_constraint_holds_however_many_answers_were_given_under_it(
    constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer makes states that no other needs; those of all requests must not fill one matcher."""
    limits = LLParserLimits(max_lexer_states=400, verbose_errors=False)
    monkeypatch.setattr("server.text.constraints._PARSER_LIMITS", limits)
    rng = random.Random(3)
    choices = ["".join(rng.choices("abcdefghijkl", k=30)) for _ in range(100)]
    for _ in range(50):
        place = start(constraints.choice(choices))
        while not place.finished:
            legal = np.flatnonzero(np.unpackbits(place.masks([], 1).view(np.uint8), bitorder="little"))
            assert place.push(int(rng.choice(legal))), place.failure


def test_what_was_refused_is_not_compiled_again(constraints: Constraints, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = "(ab|cd){3}(?=x)"
    with pytest.raises(ConstraintError) as first:
        constraints.regex(bad)
    monkeypatch.setattr(constraints, "_compile", None)
    with pytest.raises(ConstraintError) as second:
        constraints.regex(bad)
    assert str(second.value) == str(first.value)


def test_stop_tokens_that_are_text_do_not_count_as_an_end(constraints: Constraints) -> None:
    letter = ids_of("x")[0]
    place = constraints.regex("a+").start(eos_ids() | {letter})
    assert place.push(ids_of("a")[0])
    assert place.legal([letter]) == 0
    assert all(place.legal([token]) == 1 for token in eos_ids())


def test_forced_text_is_tokenised_as_the_model_would(constraints: Constraints) -> None:
    """Where a constraint leaves one way only, the model is shown the tokens that it knows for that text."""
    text = "once upon a time there was a story"
    place = start(constraints.choice([text]))
    for token in ids_of(text):
        assert place.legal([token]) == 1
        assert place.push(token)
    assert place.finished
