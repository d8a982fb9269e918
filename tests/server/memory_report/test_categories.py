import pytest

from server.memory_report.categories import CATEGORIES, category


@pytest.mark.parametrize(
    ("draft", "target", "kind"),
    [
        ("\n", "\n\n", "formatting"),
        (" the", "the", "formatting"),
        ("**", "\n- ", "formatting"),
        (" Use", " use", "case"),
        (".", ",", "punctuation"),
        ("):", ")", "punctuation"),
        ("\n", ".", "punctuation"),
        ("3", " 12", "number"),
        ("3", ".", "mixed"),
        (" and", " which", "connective"),
        (" The", " a", "connective"),
        (" the", " house", "mixed"),
        (" use", " used", "word form"),
        (" returns", " returning", "word form"),
        (" the_list", " list", "name"),
        (" myList", " items", "name"),
        ("x1", "y", "name"),
        (" big", " large", "synonym"),
        ("Here", "This", "connective"),
        (" big", ".", "mixed"),
        ("ing", "ed", "word piece"),
        ("ing", " large", "mixed"),
        ("", " a", "mixed"),
        (" 大", " 小", "synonym"),
    ],
)
def test_kinds_by_example(draft: str, target: str, kind: str) -> None:
    assert kind in CATEGORIES
    assert category(draft, target) == kind


def test_control_tokens_come_before_everything() -> None:
    assert category("<|im_end|>", "<|im_end|> ", control=True) == "control"
