"""OutputWriter: an answer as OpenAI's output items, and the events that tell how they grow.

Whatever the model says goes into the item that is open, or opens the next one:

    thoughts -> reasoning item      words -> message item      a call -> function_call item

Both the streamed and the whole answer are written by it, so they cannot differ.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]
Entry = dict[str, Any]


class OutputWriter:
    """Every method yields the events to send; they lack their sequence numbers. `items` is the output so far."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: _OpenItem | None = None

    @property
    def speaking(self) -> bool:
        """Whether further words would join the message that is open."""
        return isinstance(self._open, _Message)

    def say(self, text: str, logprobs: list[Entry]) -> Iterator[Event]:
        """Words of the answer, and the log-probabilities of the tokens shown with them."""
        if not self.speaking:
            yield from self._begin(_Message(len(self.items)))
        yield from self._grow(text, logprobs)

    def think(self, text: str) -> Iterator[Event]:
        if not isinstance(self._open, _Reasoning):
            yield from self._begin(_Reasoning(len(self.items)))
        yield from self._grow(text)

    def call(self, call_id: str, name: str) -> Iterator[Event]:
        """A call of the function begins; its arguments follow."""
        yield from self._begin(_FunctionCall(len(self.items), call_id, name))

    def arguments(self, text: str) -> Iterator[Event]:
        """More of the arguments of the call that began last."""
        yield from self._grow(text)

    def finish(self, cut_short: bool) -> Iterator[Event]:
        """No more follows. cut_short: the item that is still open did not come to its end."""
        if not self.items:
            yield from self._begin(_Message(0))
        yield from self._close("incomplete" if cut_short else "completed")

    def abandon(self) -> list[dict[str, Any]]:
        """The output as far as it came, where something went wrong."""
        if self._open is not None:
            self.items[self._open.index] = self._open.shown("incomplete")
        return self.items

    def _begin(self, item: "_OpenItem") -> Iterator[Event]:
        yield from self._close("completed")
        self._open = item
        self.items.append(item.shown("in_progress"))
        yield item.event("response.output_item.added", item=self.items[-1])
        yield from item.begin()

    def _grow(self, text: str, logprobs: list[Entry] | None = None) -> Iterator[Event]:
        assert self._open is not None
        yield self._open.grow(text, logprobs or [])

    def _close(self, status: str) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        yield from item.end()
        self.items[item.index] = item.shown(status)
        yield item.event("response.output_item.done", item=self.items[item.index])


class _OpenItem(ABC):
    """An item that still grows. index: its place in the output."""

    def __init__(self, index: int, prefix: str) -> None:
        self.index = index
        self.id = f"{prefix}_{uuid.uuid4().hex}"
        self._pieces: list[str] = []

    @abstractmethod
    def shown(self, status: str) -> dict[str, Any]:
        """The item as it stands; while it is in progress it has no content yet."""

    def begin(self) -> Iterator[Event]:
        """The events between the item's own and its first delta."""
        yield from ()

    @abstractmethod
    def grow(self, text: str, logprobs: list[Entry]) -> Event:
        """Take more of it, and the event that tells."""

    @abstractmethod
    def end(self) -> Iterator[Event]:
        """The events between its last delta and the item's own."""

    def event(self, kind: str, **more: Any) -> Event:
        return {"type": kind, "output_index": self.index, **more}

    def _within(self, kind: str, **more: Any) -> Event:
        return self.event(kind, item_id=self.id, **more)

    @property
    def _text(self) -> str:
        return "".join(self._pieces)


class _Message(_OpenItem):
    def __init__(self, index: int) -> None:
        super().__init__(index, "msg")
        self._logprobs: list[Entry] = []

    def shown(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part()]
        return {"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content}

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": self._logprobs}

    def begin(self) -> Iterator[Event]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._within("response.content_part.added", content_index=0, part=part)

    def grow(self, text: str, logprobs: list[Entry]) -> Event:
        self._pieces.append(text)
        self._logprobs += logprobs
        return self._within("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def end(self) -> Iterator[Event]:
        yield self._within("response.output_text.done", content_index=0, text=self._text, logprobs=self._logprobs)
        yield self._within("response.content_part.done", content_index=0, part=self._part())


class _Reasoning(_OpenItem):
    def __init__(self, index: int) -> None:
        super().__init__(index, "rs")

    def shown(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part(self._text)]
        return {"type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}

    def begin(self) -> Iterator[Event]:
        yield self._within("response.content_part.added", content_index=0, part=self._part(""))

    def grow(self, text: str, logprobs: list[Entry]) -> Event:
        self._pieces.append(text)
        return self._within("response.reasoning_text.delta", content_index=0, delta=text)

    def end(self) -> Iterator[Event]:
        yield self._within("response.reasoning_text.done", content_index=0, text=self._text)
        yield self._within("response.content_part.done", content_index=0, part=self._part(self._text))


class _FunctionCall(_OpenItem):
    def __init__(self, index: int, call_id: str, name: str) -> None:
        super().__init__(index, "fc")
        self._call_id = call_id
        self._name = name

    def shown(self, status: str) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": self.id,
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self._text,
        }

    def grow(self, text: str, logprobs: list[Entry]) -> Event:
        self._pieces.append(text)
        return self._within("response.function_call_arguments.delta", delta=text)

    def end(self) -> Iterator[Event]:
        yield self._within("response.function_call_arguments.done", name=self._name, arguments=self._text)
