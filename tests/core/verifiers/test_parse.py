"""What a request may say about its verifier, and what it is told when that is wrong."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.verifiers.params import CsdParams, FlyParams, HybridParams, LossyParams, StrictParams, VerifierParams
from core.verifiers.parse import VerifierError, check_window, parse_verifier
from core.verifiers.registry import VERIFIERS

CONFIGURED: dict[str, VerifierParams] = {
    "strict": StrictParams(),
    "fly": FlyParams(window=4, entropy="full"),
    "csd": CsdParams(ratio=0.01),
}


def refusal(value: object, **kwargs: Any) -> VerifierError:
    with pytest.raises(VerifierError) as caught:
        parse_verifier(value, CONFIGURED, **kwargs)
    return caught.value


def test_nothing_said_is_the_servers_default() -> None:
    assert parse_verifier(None, CONFIGURED) == StrictParams()
    assert parse_verifier(None, CONFIGURED, default="fly") == FlyParams(window=4, entropy="full")


def test_a_name_takes_the_configured_parameters() -> None:
    assert parse_verifier("fly", CONFIGURED) == FlyParams(window=4, entropy="full")
    assert parse_verifier("lossy", CONFIGURED) == LossyParams()


def test_an_object_overrides_only_what_it_names() -> None:
    parsed = parse_verifier({"type": "fly", "entropy_threshold": 1}, CONFIGURED)
    assert parsed == FlyParams(window=4, entropy="full", entropy_threshold=1.0)
    assert parse_verifier({"type": "csd"}, CONFIGURED) == CsdParams(ratio=0.01)


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_verifier_parses_from_its_own_json(name: str) -> None:
    params = VERIFIERS[name].params()
    assert parse_verifier(json.loads(params.model_dump_json()), {}) == params


@pytest.mark.parametrize("value", ["flyy", "", "FLY", "x" * 5000])
def test_unknown_names_list_the_allowed_ones(value: str) -> None:
    error = refusal(value)
    assert error.param == "verifier"
    assert "off, strict, fly, csd, hybrid, lossy, typical" in str(error)
    assert len(str(error)) < 200


def test_a_name_the_server_forbids_lists_what_it_allows() -> None:
    error = refusal("csd", allowed=("strict", "fly"))
    assert "not allowed on this server; allowed: strict, fly" in str(error)
    assert "csd" not in str(error).split("allowed:")[1]
    assert refusal({"type": "csd"}, allowed=("strict",)).param == "verifier.type"


@pytest.mark.parametrize("value", [3, 0.5, True, False, ["fly"], [], b"fly", 10**400, float("nan")])
def test_values_that_are_neither_name_nor_object(value: object) -> None:
    error = refusal(value)
    assert error.param == "verifier"
    assert "a name or an object" in str(error)


def test_numbers_too_long_to_print() -> None:
    assert refusal(10**5000).param == "verifier"
    assert refusal({"type": "fly", "window": -(10**5000)}).param == "verifier.window"
    assert refusal({"type": "fly", "entropy_threshold": 10**5000}).param == "verifier.entropy_threshold"


@pytest.mark.parametrize("value", [{}, {"window": 3}])
def test_an_object_without_type(value: dict[str, object]) -> None:
    error = refusal(value)
    assert error.param == "verifier.type"
    assert "allowed: off, strict" in str(error)


@pytest.mark.parametrize("kind", [None, 3, ["fly"], {"type": "fly"}, True])
def test_a_type_that_is_no_name(kind: object) -> None:
    assert refusal({"type": kind}).param == "verifier.type"


def test_unknown_parameters_list_the_known_ones() -> None:
    error = refusal({"type": "fly", "windows": 3})
    assert error.param == "verifier.windows"
    assert str(error).endswith("allowed: entropy_threshold, window, entropy, type")
    assert refusal({"type": "strict", "window": 3}).param == "verifier.window"
    assert refusal({"type": "fly", 3: 3}).param == "verifier"


@pytest.mark.parametrize(
    "window", [True, "6", 6.0, 6.5, None, -1, 65, 10**400, float("nan"), float("inf"), [6], {"value": 6}]
)
def test_windows_that_are_no_integer_in_range(window: object) -> None:
    error = refusal({"type": "fly", "window": window})
    assert error.param == "verifier.window"
    assert "verifier.window must be an integer at least 0 and at most 64, got " in str(error)
    assert len(str(error)) < 200


@pytest.mark.parametrize("ratio", [True, "0.3", None, 0, -0.1, 1.01, 10**400, float("nan"), float("inf"), [0.3]])
@pytest.mark.parametrize("kind", ["csd", "hybrid"])
def test_ratios_that_are_no_number_in_range(kind: str, ratio: object) -> None:
    error = refusal({"type": kind, "ratio": ratio})
    assert error.param == "verifier.ratio"
    assert "must be a number above 0 and at most 1, got " in str(error)


@pytest.mark.parametrize("field", ["epsilon", "delta"])
@pytest.mark.parametrize("value", [True, "0.1", None, 0, 1.01, float("nan")])
def test_typicals_numbers_lie_above_0_and_at_most_at_1(field: str, value: object) -> None:
    error = refusal({"type": "typical", field: value})
    assert error.param == f"verifier.{field}"
    assert "must be a number above 0 and at most 1, got " in str(error)


def test_choices_are_listed() -> None:
    error = refusal({"type": "hybrid", "entropy": "top5"})
    assert str(error) == "verifier.entropy must be one of: top3, full, got 'top5'"
    assert error.__cause__ is None
    assert error.__context__ is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=4,
)
FIELDS = [*FlyParams.model_fields, *HybridParams.model_fields, "threshold", "epsilon"]


@given(
    value=JSON
    | st.dictionaries(st.sampled_from(["type", *FIELDS]), JSON)
    | st.builds(
        lambda kind, rest: {**rest, "type": kind},
        st.sampled_from(list(VERIFIERS)),
        st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2),
    )
)
def test_any_json_gives_parameters_or_a_verifier_error(value: Any) -> None:
    try:
        parsed = parse_verifier(value, CONFIGURED)
    except VerifierError:
        error = refusal(value)
        assert error.param.startswith("verifier")
        assert "allowed" in str(error) or " must be " in str(error)
        return
    assert type(parsed).model_validate(parsed.model_dump(), strict=True) == parsed


@pytest.mark.parametrize("params", [FlyParams(window=6), HybridParams(window=6)])
def test_a_window_the_block_cannot_hold(params: VerifierParams) -> None:
    assert check_window(params, 7, from_request=True) is None
    for drafts in (0, 5, 6):
        with pytest.raises(VerifierError, match="at least 7 draft tokens") as caught:
            check_window(params, drafts, from_request=True)
        assert caught.value.param == "verifier.window"
        warning = check_window(params, drafts, from_request=False)
        assert warning is not None
        assert f"num_draft_tokens is {drafts}" in warning


def test_window_warnings_say_what_is_lost() -> None:
    assert "fly equals strict" in str(check_window(FlyParams(window=6), 6, from_request=False))
    assert "csd" in str(check_window(HybridParams(window=6), 6, from_request=False))


def test_verifiers_without_a_window_fit_any_block() -> None:
    for name in ("off", "strict", "csd", "lossy", "typical"):
        assert check_window(VERIFIERS[name].params(), 0, from_request=True) is None
    assert check_window(FlyParams(window=0), 1, from_request=True) is None
