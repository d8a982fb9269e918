import pytest

from benchmarks.matrix import OFF, MatrixError, one_setting, settings_matrix, strict_beside


def test_every_combination_is_named_and_says_what_it_asks_for() -> None:
    found = settings_matrix(["strict", '{"type": "fly", "window": 4}'], ["auto", "model"], ["default", "12"])
    assert [one.name for one in found] == [
        "strict",
        "strict K=12",
        "strict model",
        "strict model K=12",
        "fly(window=4)",
        "fly(window=4) K=12",
        "fly(window=4) model",
        "fly(window=4) model K=12",
    ]
    assert found[0].fields == {"verifier": "strict", "drafter": "auto"}
    fixed = {"draft_length": "fixed", "num_draft_tokens": 12}
    assert found[7].fields == {"verifier": {"type": "fly", "window": 4}, "drafter": "model", **fixed}


@pytest.mark.parametrize(
    ("length", "fields"),
    [
        ("adaptive", {"draft_length": "adaptive"}),
        ("adaptive:16", {"draft_length": "adaptive", "num_draft_tokens": 16}),
    ],
)
def test_adaptive_lengths_may_have_a_cap(length: str, fields: dict[str, object]) -> None:
    (setting,) = settings_matrix(["strict"], ["auto"], [length])
    assert setting.fields == {"verifier": "strict", "drafter": "auto", **fields}


def test_off_is_the_baseline_and_no_setting_of_its_own() -> None:
    assert [one.name for one in settings_matrix(["off", "strict"], ["auto"], ["default"])] == ["strict"]


@pytest.mark.parametrize("length", ["0", "many", "adaptive:0", "adaptive:x", "default:3", "-1"])
def test_a_draft_length_that_means_nothing_is_refused(length: str) -> None:
    with pytest.raises(MatrixError, match="should be default, adaptive, adaptive:K or a number"):
        settings_matrix(["strict"], ["auto"], [length])


@pytest.mark.parametrize("verifier", ["{", '{"window": 3}'])
def test_a_verifier_object_needs_a_type(verifier: str) -> None:
    with pytest.raises(MatrixError, match="should be a name or an object"):
        settings_matrix([verifier], ["auto"], ["default"])


def test_a_loose_setting_is_compared_with_the_strict_one_that_drafts_alike() -> None:
    settings = [OFF, *settings_matrix(["strict", "fly", '{"type": "fly", "window": 4}'], ["auto"], ["default", "12"])]
    found = {one.name: strict_beside(one, settings) for one in settings}
    names = {name: None if strict is None else strict.name for name, strict in found.items()}
    assert names == {
        "off": None,
        "strict": None,
        "strict K=12": None,
        "fly": "strict",
        "fly K=12": "strict K=12",
        "fly(window=4)": "strict",
        "fly(window=4) K=12": "strict K=12",
    }
    (model,) = settings_matrix(["fly"], ["model"], ["default"])
    assert strict_beside(model, settings) is settings[1]
    assert strict_beside(model, [OFF, model]) is None


def test_a_single_verifier_may_be_off() -> None:
    assert one_setting("off") is OFF
    assert one_setting("strict").fields == {"verifier": "strict", "drafter": "auto"}
