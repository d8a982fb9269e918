"""ChatFormat: which markup a model writes around tool calls and reasoning, told from its chat template.

AnswerReading applies it to one request: it makes the parsers that read its answers, and the trackers that protect
its calls from being loosened.
"""

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from server.text.answer_parts import Content, Part
from server.text.reasoning import THINK_TAGS, ReasoningSplitter, ReasoningTags
from server.text.reasoning_count import ReasoningCounter
from server.text.stop_scope import StopScope
from server.text.token_bytes import TokenBytes
from server.text.tool_calls import CallParser
from server.text.tool_forms import FORMS
from server.text.tool_spans import CallSpans, SpanRules

_REASONING = dict(zip(("think", "mistral"), THINK_TAGS, strict=True))
_PROMPT_TAIL = 16  # tokens; a template opens the reasoning in the last ones, spelled out if it must


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """form: a key of FORMS, or None where the model writes calls in no form known here. reasoning: None for a model
    that does not think aloud. shows_tools, shows_calls: whether the template renders a request's tools, and the calls
    and results of earlier turns; where it does not, tool_prompt.py writes them out."""

    form: str | None
    reasoning: ReasoningTags | None
    shows_tools: bool = True
    shows_calls: bool = True
    named_arguments: bool = False  # Mistral's newer `name[ARGS]{...}` instead of a list of objects

    @classmethod
    def detect(
        cls, template: str, tokens: Container[str], tool_call_parser: str = "auto", reasoning_parser: str = "auto"
    ) -> "ChatFormat":
        """tokens: the tokenizer's added tokens. The parsers: "auto", "none", or which one it is."""
        shows_tools = re.search(r"\btools\b", template) is not None
        form = _form_of(template, shows_tools) if tool_call_parser == "auto" else tool_call_parser
        if reasoning_parser == "auto":
            seen = (tags for tags in THINK_TAGS if tags.closing in template or tags.closing in tokens)
            reasoning = next(seen, None)
        else:
            reasoning = _REASONING.get(reasoning_parser)
        return cls(
            form=form if form in FORMS else None,
            reasoning=reasoning,
            shows_tools=shows_tools,
            shows_calls="tool_calls" in template,
            named_arguments="[ARGS]" in template,
        )


def _form_of(template: str, shows_tools: bool) -> str:
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return "hermes"
    if '"parameters"' in template and ("<|python_tag|>" in template or "ipython" in template):
        return "llama3_json"
    # A model that was shown no form takes the one it is told, and tool_prompt.py tells it this one.
    return "none" if shows_tools else "hermes"


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """How the answers to one request are read.

    form: None if it calls no tools. names: what may be called. most_calls: more are left out. opened: whether the
    prompt ends inside the reasoning. calls_reason: the finish reason of an answer that stopped with calls. forced:
    whether the answers are nothing but calls.
    """

    reasoning: ReasoningTags | None = None
    opened: bool = False
    form: type[CallParser] | None = None
    names: frozenset[str] = frozenset()
    most_calls: int | None = None
    calls_reason: str = "tool_calls"
    forced: bool = False

    @property
    def markup(self) -> frozenset[str]:
        """The tags it looks for; where they are control tokens, their text must not be dropped before."""
        tags = self.form.markup if self.form is not None else ()
        return frozenset(tags) | (self.reasoning.tags if self.reasoning is not None else frozenset())

    def parser(self) -> "AnswerParser":
        splitter = ReasoningSplitter(self.reasoning, self.opened) if self.reasoning is not None else None
        calls = self.form(self.names, self.most_calls) if self.form is not None else None
        return AnswerParser(splitter, calls, self.forced)

    def counter(self) -> ReasoningCounter | None:
        """Of one answer's reasoning; None where there can be none."""
        return ReasoningCounter(self.reasoning, self.opened) if self.reasoning is not None else None

    def stop_scope(self) -> StopScope | None:
        """What of one answer its stop strings act on; None for all of it."""
        if self.form is None and self.reasoning is None:
            return None
        return StopScope(self.form, self.reasoning, self.opened)

    def spans(self, token_bytes: TokenBytes) -> CallSpans | None:
        """The tracker of one answer; None where there is nothing to protect."""
        if self.form is None:
            return None
        return CallSpans(SpanRules.of(self.form, self.reasoning), token_bytes.showing(self.markup))


def opens_reasoning(prompt: Sequence[int], reasoning: ReasoningTags | None, token_bytes: TokenBytes) -> bool:
    """Whether the prompt ends with the opening tag, as some templates' do."""
    if reasoning is None:
        return False
    table = token_bytes.showing(reasoning.tags)
    tail = b"".join(table[token] for token in prompt[-_PROMPT_TAIL:])
    return tail.rstrip().endswith(reasoning.opening.encode())


class AnswerParser:
    """One answer's text in, its parts out; see CallParser and ReasoningSplitter for what they promise."""

    def __init__(self, splitter: ReasoningSplitter | None, calls: CallParser | None, forced: bool = False) -> None:
        self._splitter = splitter
        self._calls = calls
        self._forced = forced
        self._fed = 0  # characters

    def feed(self, text: str) -> list[Part]:
        """What is certain now."""
        parts: list[Part] = [Content(text, self._fed)] if text else []
        self._fed += len(text)
        return list(self._read(parts if self._splitter is None else self._splitter.feed(text)))

    def finish(self, cut_short: bool = False) -> list[Part]:
        """The answer has ended. cut_short: by max_tokens; what looks like words may then be a beginning of a call."""
        parts = list(self._read(self._splitter.finish())) if self._splitter is not None else []
        parts += self._calls.finish(cut_short) if self._calls is not None else []
        return [part for part in parts if not (cut_short and self._forced and isinstance(part, Content))]

    def _read(self, parts: list[Part]) -> Iterator[Part]:
        for part in parts:
            if isinstance(part, Content) and self._calls is not None:
                yield from self._calls.feed(part.text, part.start)
            else:
                yield part

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return self._calls is not None and self._calls.calls > 0
