import pytest

from server.assembly_error import AssemblyError
from server.vocabularies import Vocabulary, check_vocabularies


def vocabulary(name: str, *tokens: str, special: frozenset[int] = frozenset()) -> Vocabulary:
    return Vocabulary(name, {token: i for i, token in enumerate(tokens)}, special)


def test_vocabularies_are_compared_by_id() -> None:
    check_vocabularies(vocabulary("T", "a", "b"), Vocabulary("D", {"b": 1, "a": 0}, frozenset()))
    with pytest.raises(AssemblyError, match=r"2 ids differ \(id 0 is 'a' in T and 'b' in D; id 1 is 'b' in T and 'a'"):
        check_vocabularies(vocabulary("T", "a", "b"), vocabulary("D", "b", "a"))


def test_control_tokens_may_have_other_names_if_they_are_control_tokens_in_both() -> None:
    target = vocabulary("T", "a", "<reserved_0>", special=frozenset({1}))
    check_vocabularies(target, vocabulary("D", "a", "<tool>", special=frozenset({1})))
    with pytest.raises(AssemblyError, match=r"1 ids differ \(id 1 is '<reserved_0>' in T and 'b' in D\)"):
        check_vocabularies(target, vocabulary("D", "a", "b"))


def test_a_control_token_that_only_the_draft_has_is_a_difference() -> None:
    with pytest.raises(AssemblyError, match="id 1 is no token in T and '<tool>' in D"):
        check_vocabularies(vocabulary("T", "a"), vocabulary("D", "a", "<tool>", special=frozenset({1})))
