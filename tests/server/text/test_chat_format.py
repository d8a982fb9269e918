import pytest

from server.text.answer_parts import CallStart, Content, Reasoning
from server.text.chat_format import AnswerReading, ChatFormat, opens_reasoning
from server.text.reasoning import THINK_TAGS
from server.text.token_bytes import TokenBytes
from server.text.tool_forms import FORMS

THINK, MISTRAL = THINK_TAGS
QWEN = "{% if tools %}<tool_call>{% endif %}{% for c in m.tool_calls %}"
LLAMA = '{% if tools is not none %}Environment: ipython {"name": function name, "parameters": {}}{% endif %}tool_calls'


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (QWEN, "hermes"),
        (LLAMA, "llama3_json"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]{{ tool_calls }}", "mistral"),
        ("{% if tools %}<tool_call><function=name>{% endif %}", None),
        ("{% if tools %}call me{% endif %}", None),
        ("{{ messages }}", "hermes"),  # it is told this form in words
    ],
)
def test_the_form_is_told_from_the_template(template: str, form: str | None) -> None:
    assert ChatFormat.detect(template, ()).form == form


def test_what_the_template_renders_is_told_from_it_too() -> None:
    qwen, plain = ChatFormat.detect(QWEN, ()), ChatFormat.detect("{{ messages }}", ())
    assert (qwen.shows_tools, qwen.shows_calls) == (True, True)
    assert (plain.shows_tools, plain.shows_calls) == (False, False)
    assert not qwen.named_arguments
    assert ChatFormat.detect("{{ tools }}[TOOL_CALLS]x[ARGS]", ()).named_arguments


@pytest.mark.parametrize(
    ("template", "tokens", "tags"),
    [("x</think>", (), THINK), ("x", ("</think>",), THINK), ("[/THINK]", (), MISTRAL), (QWEN, (), None)],
)
def test_a_model_that_thinks_is_known_by_its_template_or_tokens(template: str, tokens: tuple, tags: object) -> None:
    assert ChatFormat.detect(template, tokens).reasoning == tags


def test_settings_win_over_the_template() -> None:
    forced = ChatFormat.detect(QWEN + "</think>", (), "mistral", "none")
    assert (forced.form, forced.reasoning) == ("mistral", None)
    assert ChatFormat.detect(QWEN, (), "none", "think") == ChatFormat(None, THINK)


def test_a_prompt_that_ends_inside_the_reasoning_is_noticed_even_if_the_tag_is_a_control_token() -> None:
    table = TokenBytes([b"<think>", b"<", b"think", b">", b"\n", b"a"], ["<think>", "<", "think", ">", "\n", "a"], {0})
    assert opens_reasoning([5, 0, 4], THINK, table)
    assert opens_reasoning([5, 1, 2, 3], THINK, table)
    assert not opens_reasoning([0, 5], THINK, table)
    assert not opens_reasoning([5, 0], None, table)
    assert not opens_reasoning([], THINK, table)


def test_calls_are_looked_for_behind_the_reasoning_only() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    reading = AnswerReading(THINK, True, FORMS["hermes"], frozenset({"f"}))
    parser = reading.parser()
    parts = [part for character in f"I could {call}.</think>\n\nNow:\n{call}" for part in parser.feed(character)]
    parts += parser.finish()
    assert "".join(part.text for part in parts if isinstance(part, Reasoning)) == f"I could {call}."
    assert "".join(part.text for part in parts if isinstance(part, Content)) == "Now:"
    assert [part.name for part in parts if isinstance(part, CallStart)] == ["f"]
    assert parser.called


def test_an_answer_without_markup_passes_unchanged() -> None:
    parser = AnswerReading().parser()
    assert parser.feed(" <think>a") + parser.feed("") + parser.finish() == [Content(" <think>a")]
    assert not parser.called


def test_control_tokens_of_the_markup_are_text_to_its_reader_alone() -> None:
    table = TokenBytes([b"[TOOL_CALLS]", b"</s>"], ["[TOOL_CALLS]", "</s>"], {0, 1})
    shown = table.showing(AnswerReading(form=FORMS["mistral"]).markup)
    assert (shown[0], shown[1]) == (b"[TOOL_CALLS]", b"")
    assert table[0] == b""
    assert table.showing(AnswerReading(form=FORMS["mistral"]).markup) is shown
    assert table.showing(frozenset({"<think>"})) is table
