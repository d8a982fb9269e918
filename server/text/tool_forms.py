"""The forms in which models write tool calls: Hermes (Qwen), Llama 3 and Mistral."""

import re
import secrets
import string
from collections.abc import Mapping
from types import MappingProxyType

from server.text.call_reader import CallReader
from server.text.tool_calls import CallParser, Mode


class HermesCalls(CallParser):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, a pair of tags for each call: Hermes, Qwen 2.5 and 3.

    Models that were not trained for it well leave the tags out, or put the object into a fence of code. An answer that
    begins with such an object is a call too, as nothing else looks like it.
    """

    markers = ("<tool_call>",)
    closing = "</tool_call>"
    markup = (*markers, closing)
    bare = True

    def _closed(self, last: bool) -> bool:
        start, closing = self._text.lstrip(), "```" if self._fenced else self.closing
        if start.startswith(closing):
            self._text = start[len(closing) :]
        elif closing.startswith(start) and not last:
            return False
        self._fenced = False
        super()._closed(last)
        if self._unannounced:
            self._mode = Mode.START  # as may the next one be
        return True


class LlamaCalls(CallParser):
    """`{"name": ..., "parameters": ...}` as the whole answer, with or without `<|python_tag|>` before it, several
    divided by semicolons: Llama 3.1 and later."""

    markers = ("<|python_tag|>",)
    markup = markers
    bare = True

    def _closed(self, last: bool) -> bool:
        start = self._text.lstrip()
        behind = start[1:].lstrip() if start.startswith(";") else start
        if behind.startswith("{"):
            self._raw = [self._text[: len(self._text) - len(behind)]]
            self._text = behind
            self._begin(CallReader(self._names, bare=True))
            return True
        return (bool(behind) or last) and super()._closed(last)


class MistralCalls(CallParser):
    """`[TOOL_CALLS] [{"name": ..., "arguments": ...}, ...]`, or since 2025 `[TOOL_CALLS]name[ARGS]{...}` for each
    call: Mistral. Its templates insist on ids of nine letters and digits."""

    markers = ("[TOOL_CALLS]",)
    markup = (*markers, "[CALL_ID]", "[ARGS]")
    _HEAD = re.compile(r"([a-zA-Z0-9_-]{1,64})\s*(?:\[CALL_ID\][a-zA-Z0-9]{1,64})?\s*(?:\[ARGS\])?\s*")
    _LONGEST_HEAD = 256
    _in_list = False

    def _opened(self, last: bool) -> bool:
        self._skip_blanks(raw=True)
        if not self._text:
            return False
        self._in_list = self._text.startswith("[")
        if self._in_list:
            self._raw.append("[")
            self._text = self._text[1:]
            self._begin(CallReader(self._names))
            return True
        head, brace, _ = self._text.partition("{")
        if not head:
            self._begin(CallReader(self._names))
            return True
        if not brace and not last and len(head) <= self._LONGEST_HEAD:
            return False
        match = self._HEAD.fullmatch(head)
        if not brace or match is None or match[1] not in self._names:
            self._give_up()
            return True
        self._raw.append(head)
        self._text = self._text[len(head) :]
        self._begin(CallReader(self._names, name=match[1]))
        return True

    def _closed(self, last: bool) -> bool:
        start = self._text.lstrip()
        if self._in_list and start.startswith(","):
            self._raw = [self._text[: len(self._text) - len(start) + 1]]
            self._text = start[1:]
            self._begin(CallReader(self._names))
            return True
        if self._in_list and not start and not last:
            return False
        if self._in_list and start.startswith("]"):
            self._text = start[1:]
        return super()._closed(last)

    def _new_id(self) -> str:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


FORMS: Mapping[str, type[CallParser]] = MappingProxyType(
    {"hermes": HermesCalls, "llama3_json": LlamaCalls, "mistral": MistralCalls}
)
