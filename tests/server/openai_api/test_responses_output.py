"""The events of an output: whoever adds up what they tell has the output itself."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.openai_api.responses_output import OutputWriter

TEXT = st.text(max_size=5)
ENTRIES = st.lists(st.fixed_dictionaries({"token": TEXT}), max_size=2)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), TEXT, ENTRIES),
        st.tuples(st.just("think"), TEXT),
        st.tuples(st.just("call"), TEXT, TEXT, st.lists(TEXT, max_size=3)),
    ),
    max_size=8,
)


def written(actions: list[Any], cut_short: bool) -> tuple[OutputWriter, list[dict[str, Any]]]:
    writer = OutputWriter()
    events: list[dict[str, Any]] = []
    for kind, *arguments in actions:
        if kind == "call":
            *names, pieces = arguments
            events += writer.call(*names)
            for piece in pieces:
                events += writer.arguments(piece)
        else:
            events += getattr(writer, kind)(*arguments)
    events += writer.finish(cut_short)
    return writer, events


class Reader:
    """A client that trusts only what is new in each event, and checks what it is told at the end of each thing."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.part: dict[str, Any] | None = None

    def read(self, event: dict[str, Any]) -> None:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert self.open is None
            assert event["output_index"] == len(self.items)
            self.open = {**event["item"]}
            self.items.append(self.open)
            return
        assert self.open is not None
        assert event["output_index"] == len(self.items) - 1
        assert event.get("item_id", self.open["id"]) == self.open["id"]
        if kind == "content_part.added":
            assert event["content_index"] == len(self.open["content"])
            self.part = {**event["part"]}
            self.open["content"] = [*self.open["content"], self.part]
        elif kind.startswith("function_call_arguments"):
            self._grow(self.open, "arguments", event, kind)
        elif kind == "content_part.done":
            assert self.part == event["part"]
            self.part = None
        elif kind == "output_item.done":
            assert self.part is None
            self.open["status"] = event["item"]["status"]
            assert event["item"] == self.open
            self.open = None
        else:
            assert self.part is not None
            assert kind.startswith(self.part["type"])
            self._grow(self.part, "text", event, kind)

    def _grow(self, thing: dict[str, Any], key: str, event: dict[str, Any], kind: str) -> None:
        if kind.endswith(".delta"):
            thing[key] += event["delta"]
            if "logprobs" in thing:
                thing["logprobs"] = [*thing["logprobs"], *event["logprobs"]]
        else:
            assert event[key] == thing[key]
            assert event.get("logprobs") == thing.get("logprobs")
            assert event.get("name") == thing.get("name")


@given(ACTIONS, st.booleans())
def test_adding_up_the_events_gives_the_output(actions: list[Any], cut_short: bool) -> None:
    writer, events = written(actions, cut_short)
    reader = Reader()
    for event in events:
        reader.read(event)
    assert reader.open is None
    assert reader.items == writer.items
    assert [item["status"] for item in writer.items[:-1]] == ["completed"] * (len(writer.items) - 1)
    assert writer.items[-1]["status"] == ("incomplete" if cut_short else "completed")


@given(ACTIONS)
def test_every_word_thought_and_call_is_in_the_output_in_its_order(actions: list[Any]) -> None:
    writer, _ = written(actions, cut_short=False)
    said: list[tuple[str, str]] = []
    for kind, *arguments in actions:
        if kind == "call":
            said.append(("function_call", arguments[1] + "|" + "".join(arguments[2])))
        elif said and said[-1][0] == kind:
            said[-1] = (kind, said[-1][1] + arguments[0])
        else:
            said.append((kind, arguments[0]))
    names = {"message": "say", "reasoning": "think"}
    found = [
        (item["type"], f"{item['name']}|{item['arguments']}")
        if item["type"] == "function_call"
        else (names[item["type"]], item["content"][0]["text"])
        for item in writer.items
    ]
    assert found == (said or [("say", "")])
    assert len({item["id"] for item in writer.items}) == len(writer.items)


def test_an_abandoned_output_shows_what_came() -> None:
    writer = OutputWriter()
    list(writer.think("hm"))
    list(writer.say("half a", []))
    thought, message = writer.abandon()
    assert (thought["status"], message["status"]) == ("completed", "incomplete")
    assert message["content"][0]["text"] == "half a"
    assert OutputWriter().abandon() == []
