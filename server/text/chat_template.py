"""PromptBuilder: messages or plain text to token ids, with the model's own chat template.

Both are pure functions of the tokenizer and run in a worker thread: a template over thousands of messages, or a
megabyte of text, takes longer than the event loop may be away. A prompt that cannot fit the context by its length
alone is refused before it is tokenised.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import from_json

from server.text.chat_format import ChatFormat
from server.text.control_strings import ControlStrings, choose_sentinel, strings_in
from server.text.token_bytes import TokenBytes
from server.text.tool_prompt import with_calls_as_text, with_short_ids, with_tools

# More than any text has on average; what is longer is looked at piece by piece.
_CHARS_PER_TOKEN = 16
_LEAST_TEXT = 64 << 10
Message = dict[str, Any]
_TRUSTED_ROLES = frozenset({"system", "assistant"})


class TemplateError(ValueError):
    """The messages cannot be rendered; the message is fit for the client."""


class PromptTooLongError(ValueError):
    """tokens: how many the prompt has, or at least has if `exact` is False."""

    def __init__(self, tokens: int, exact: bool) -> None:
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens
        self.exact = exact


class PromptBuilder:
    """Built once per model; safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Any,
        token_bytes: TokenBytes,
        control_ids: frozenset[int],
        max_context: int,
        chat_format: ChatFormat,
    ) -> None:
        self._tokenizer = tokenizer
        self._format = chat_format
        self._backend = tokenizer.backend_tokenizer
        # A tokenizer.json may ask for truncation or padding, which would silently change a prompt.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._controls = ControlStrings.from_tokenizer(tokenizer, control_ids)
        self._longest_token = token_bytes.longest
        # Normalisation (NFC, lower-casing) may shrink text, never below a quarter of its bytes.
        self._shrink = 1 if self._backend.normalizer is None else 4
        self._max_context = max_context
        template = getattr(tokenizer, "chat_template", None)
        self.has_template = bool(template)
        self._knows_developer = "developer" in str(template)

    def encode_text(self, text: str, keep: int | None = None) -> list[int]:
        """A completion's prompt, encoded as the tokenizer does by default (with BOS where the model has one).
        Here control strings are control tokens: whoever writes the whole prompt also writes its format.
        keep: only so many tokens, the last ones."""
        if keep is not None:
            return self.check_length(self._last(text, keep))
        self._refuse_hopeless(len(text.encode("utf-8", "replace")))
        self._refuse_long([text])
        return self.check_length(self.tokenize(text))

    def _last(self, text: str, keep: int) -> list[int]:
        """The text's last tokens. Where its end alone has far more, what comes before the end changes none of them."""
        end = text[-_CHARS_PER_TOKEN * self._max_context :]
        ids = self.tokenize(end)
        return ids[-keep:] if len(end) == len(text) or len(ids) > 2 * keep else self.tokenize(text)[-keep:]

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The same without regard to the context: seconds for megabytes. ValueError for text that is not Unicode."""
        return self._encode(text, add_special_tokens)

    @property
    def longest_text(self) -> int:
        """Characters of a text that is worth tokenising just to count: several times what the context can hold."""
        return max(_LEAST_TEXT, _CHARS_PER_TOKEN * self._max_context)

    def detokenize(self, token_ids: list[int]) -> str:
        """The tokenizer's own text of the ids, control tokens by their names; ids it does not know give nothing."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=False)
        return text

    def special_tokens(self) -> dict[str, Any]:
        """As tokenizer_config.json has them: the names of BOS, EOS and so on, and the chat template."""
        tokenizer = self._tokenizer
        names = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        absent = {name: None for name in ("bos_token", "eos_token", "pad_token", "unk_token") if name not in names}
        template = str(tokenizer.chat_template) if self.has_template else None
        return {"tokenizer_class": type(tokenizer).__name__, **absent, **names, "chat_template": template}

    def encode_chat(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Render the messages with the model's template, ready for the assistant's turn, and encode them.

        messages: role and content (a string) and whatever else their roles carry. tools: as OpenAI has them; what the
        template does not render of them, and of earlier calls, is written out. TemplateError if the template refuses
        the messages or the model has none; PromptTooLongError if they exceed the context.
        """
        if not self.has_template:
            raise TemplateError("this model has no chat template; use /v1/completions")
        # Parsed first: `\u003c` in a call's arguments becomes `<` there, and what is marked must be what is shown.
        messages = [_for_template(message) for message in messages]
        self._refuse_hopeless(sum(len(text.encode("utf-8", "replace")) for text in strings_in([messages, tools])))
        self._refuse_long(text for message in messages for text in strings_in([message]))
        messages, tools = self._write_out(messages, tools)
        sentinel = choose_sentinel(strings_in([messages, tools]))
        marked = [self._mark(message, sentinel) for message in messages]
        rendered = self._render(marked, self._controls.mark(tools, sentinel), add_generation_prompt)
        token_ids: list[int] = []
        for piece in rendered.split(sentinel):
            token_ids += self._encode(piece, add_special_tokens=False)
        return self.check_length(token_ids)

    def _write_out(
        self, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> tuple[list[Message], list[dict[str, Any]] | None]:
        """What the template does not render, as text."""
        if not self._format.shows_calls:
            messages = with_calls_as_text(messages)
        elif self._format.form == "mistral":
            messages = with_short_ids(messages)
        if tools and not self._format.shows_tools:
            return with_tools(messages, tools), None
        return messages, tools

    def _mark(self, message: Message, sentinel: str) -> Message:
        role = message["role"]
        if role == "developer" and not self._knows_developer:
            role = "system"
        outside = role not in _TRUSTED_ROLES and role != "developer"
        marked: Message = self._controls.mark(message, sentinel, outside)
        return {**marked, "role": role}

    def _render(self, messages: list[Message], tools: Any, add_generation_prompt: bool) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
                )
            )
        except Exception as error:  # a template is a program of the model's author: it may raise anything
            reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
            raise TemplateError(f"the model's chat template cannot render these messages: {reason}") from error

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def _refuse_hopeless(self, num_bytes: int) -> None:
        at_least = num_bytes // (self._longest_token * self._shrink)
        if at_least >= self._max_context:
            raise PromptTooLongError(at_least, exact=False)

    def _refuse_long(self, texts: Iterable[str]) -> None:
        """What one can tell of a very long text from its beginning, before all of it is tokenised."""
        most = _CHARS_PER_TOKEN * self._max_context
        for text in texts:
            if len(text) > most and len(self.tokenize(text[:most], False)) >= 2 * self._max_context:
                raise PromptTooLongError(self._max_context, exact=False)

    def check_length(self, token_ids: list[int]) -> list[int]:
        """The token ids themselves. PromptTooLongError if they leave no room for an answer."""
        if len(token_ids) >= self._max_context:
            raise PromptTooLongError(len(token_ids), exact=True)
        return token_ids


def _for_template(message: Message) -> Message:
    """The message in the shape that templates expect."""
    # Templates index `content` without asking; an assistant that only called tools has none.
    shaped = {**message, "content": message.get("content") or ""}
    if shaped.get("tool_calls"):
        shaped["tool_calls"] = [_with_parsed_arguments(call) for call in shaped["tool_calls"]]
    return shaped


def _with_parsed_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Templates print a call's arguments as JSON themselves and expect an object, OpenAI sends a JSON string."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        # Bounded in depth, and free of lone surrogates, which no tokenizer takes.
        arguments = from_json(function["arguments"])
    except ValueError:
        return dict(call)
    if not isinstance(arguments, dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}
