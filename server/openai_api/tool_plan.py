"""A plan's answers with tools and reasoning: how they are read, and the grammar of a call that is forced."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from server.errors import invalid
from server.generation_plan import GenerationPlan
from server.live_model import LiveModel
from server.openai_api.tools import ToolUse
from server.text.chat_format import AnswerReading, opens_reasoning
from server.text.constraints import JSON_OPTIONS, Constraint, ConstraintError
from server.text.tool_forms import FORMS
from server.text.tool_grammar import calls_grammar, reasoned


def check_form(use: ToolUse | None, model: LiveModel) -> None:
    """ApiError if tools are asked for and the model's calls could not be read."""
    if use is not None and model.chat_format.form is None:
        raise invalid(
            "This model writes tool calls in no form that this server reads; 'tools' need 'tool_choice': 'none'.",
            "tools",
            "unsupported_parameter",
        )


def with_reading(plan: GenerationPlan, use: ToolUse | None, model: LiveModel) -> GenerationPlan:
    """The plan, its answers read for reasoning, and for tool calls where tools may be used. ApiError if a forced
    call's arguments cannot be described by a grammar."""
    chat_format = model.chat_format
    prompt = plan.requests[0].prompt
    reading = AnswerReading(chat_format.reasoning, opens_reasoning(prompt, chat_format.reasoning, model.token_bytes))
    if use is None:
        return replace(plan, reading=reading)
    reading = replace(
        reading,
        form=FORMS[str(chat_format.form)],
        names=use.names,
        most_calls=None if use.parallel else 1,
        # OpenAI's own answers to a named function end with "stop", all others that call with "tool_calls".
        calls_reason="stop" if use.named else "tool_calls",
    )
    if not use.forced:
        return replace(plan, reading=reading)
    constraint, reading = _forced(use, reading.opened, model), replace(reading, forced=True)
    # The whole answer is calls, announced or not, and thoughts: there are no words for stop strings to act on.
    return replace(plan, reading=reading, constraint=constraint, constraint_param="tools", stops=None)


def around_answer(prompt: Sequence[int], use: ToolUse | None, model: LiveModel) -> str | None:
    """The grammar around a constrained answer, which it calls `@answer`: reasoning may come before it, and calls in
    its place. None where it is all there is. ApiError if a call is forced: then there is no answer to constrain."""
    chat_format, token_of = model.chat_format, model.constraints.token_of
    opened = opens_reasoning(prompt, chat_format.reasoning, model.token_bytes)
    if use is None:
        return None if chat_format.reasoning is None else "\n".join(reasoned("@answer", chat_format, opened, token_of))
    if use.forced:
        raise invalid("'tool_choice' demands a tool call, so the answer cannot be constrained as well.", "tool_choice")
    around = calls_grammar(chat_format, use.functions, use.parallel, opened, token_of, JSON_OPTIONS, or_answer=True)
    # Compiled with an answer that nothing is wrong with, so that a mistake is blamed on the tools if it is theirs.
    _compiled(lambda: model.constraints.json_object(around))
    return around


def _forced(use: ToolUse, opened: bool, model: LiveModel) -> Constraint:
    constraints = model.constraints
    grammar = calls_grammar(model.chat_format, use.functions, use.parallel, opened, constraints.token_of, JSON_OPTIONS)
    return _compiled(lambda: constraints.lark(grammar))


def _compiled(compile_calls: Callable[[], Constraint]) -> Constraint:
    try:
        return compile_calls()
    except ConstraintError as error:
        raise invalid(f"The parameters of 'tools' cannot be enforced: {error}", "tools") from None
