"""Tools for models whose template knows nothing of them."""

import re

import pytest

from server.text.chat_template import TemplateError
from server.text.token_bytes import TokenBytes
from server.text.tool_prompt import with_short_ids
from tests.server.serving import PADDED_VOCAB, tokenizer
from tests.server.text.test_chat_template import builder

PLAIN = "{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}"
MISTRAL = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}[TOOL_CALLS]{{ c.id }}"
    "{% endfor %}{% if m.role == 'tool' %}={{ m.tool_call_id }}{% endif %}{% endfor %}{{ tools and '' }}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\u00e9"}'}}
TURNS = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_1", "content": "two"},
    {"role": "assistant", "content": "bye"},
]


def rendered(template: str, messages: list, tools: list | None = None) -> str:
    table = TokenBytes.from_tokenizer(tokenizer(), PADDED_VOCAB, frozenset())
    tokens = builder(template, context=4000).encode_chat(messages, tools)
    return b"".join(table[token] for token in tokens).decode()


def test_tools_are_told_in_the_system_message() -> None:
    alone = rendered(PLAIN, TURNS[:1], [TOOL])
    assert re.match(
        r'\(system\)# Tools.*\{"name": "f", "parameters": \{"type": "object"\}\}\n.*<tool_call>\n', alone, re.S
    )
    assert alone.endswith("(user)hi")
    joined = rendered(PLAIN, [{"role": "system", "content": "Be brief."}, *TURNS[:1]], [TOOL])
    assert joined.startswith("(system)Be brief.\n\n# Tools")
    assert rendered(PLAIN, TURNS[:1], None) == "(user)hi"


def test_earlier_calls_and_results_are_written_out() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
    answers = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    assert rendered(PLAIN, TURNS) == f"(user)hi(assistant){call}\n{call}(user){answers}(assistant)bye"


def test_a_template_that_renders_tools_gets_them() -> None:
    template = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{{ messages[0].content }}"
    assert rendered(template, TURNS[:1], [TOOL]) == "f;hi"


def test_ids_of_other_servers_fit_mistrals_templates() -> None:
    text = rendered(MISTRAL, TURNS[:3])
    first, second, answered = re.findall(r"[0-9a-z]{9}", text)
    assert first == second == answered
    kept = [{"role": "tool", "tool_call_id": "abcDEF123", "content": ""}]
    assert with_short_ids(kept) == kept


def test_a_template_that_refuses_the_conversation_is_named_in_the_error() -> None:
    with pytest.raises(TemplateError, match="no system"):
        rendered(
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}", TURNS[:1], [TOOL]
        )
