"""The playground: what is shown is what the API says, token for token; what is sent is what the settings say."""

import json
import math
import os
import re
import subprocess
import sys
from codecs import getincrementaldecoder
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.server.serving import KEY, MODEL, ok
from tests.server.web.visitor import Visitor, ask, choose, figures_of, tokens_of

LOSSY: dict[str, Any] = {
    "verifier": "lossy",
    "verifier__threshold": 0.2,
    "drafter": "model",
    "num_draft_tokens": 5,
    "draft_length": "fixed",
    "max_tokens": 60,
}
SENT = {
    "verifier": {"type": "lossy", "threshold": 0.2},
    "drafter": "model",
    "num_draft_tokens": 5,
    "draft_length": "fixed",
    "max_tokens": 60,
    "temperature": 0,
}


def whole(api: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to what the page has sent, unstreamed, without the page."""
    plain = {name: value for name, value in body.items() if not name.startswith("stream")}
    response = api.post("/v1/chat/completions", json=plain)
    return ok(response)


def shown(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What the page ought to show of logprobs entries."""
    decoder = getincrementaldecoder("utf-8")("replace")
    return [
        (entry["token"] if entry["bytes"] is None else decoder.decode(bytes(entry["bytes"])), entry["provenance"])
        for entry in entries
    ]


def test_colours_are_the_apis_provenance_token_for_token(visitor: Visitor, api: httpx.Client) -> None:
    page = visitor.open()
    answer = ask(page, "once upon a time", **LOSSY)
    [body] = visitor.asked
    assert {name: body[name] for name in SENT} == SENT
    choice, report = whole(api, body)["choices"][0], whole(api, body)["speculation"]
    entries = choice["logprobs"]["content"]
    assert tokens_of(answer) == shown(entries)
    assert {"native", "lenient", "correction"} <= {entry["provenance"] for entry in entries}
    figures = figures_of(answer)
    assert figures["tokens"] == "60"
    assert figures["loosened"] == str(report["loosened_tokens"]["lenient"])
    assert figures["τ"] == f"{report['mean_accepted_length']:.2f}"
    legend = dict(line.split() for line in answer.locator(".legend li").all_inner_texts())
    assert sum(map(int, legend.values())) == 60
    for kind in legend:  # each kind has a line of its own shape, or none
        styles = answer.locator(f".sample[data-provenance='{kind}']").evaluate(
            "one => ['line', 'style', 'thickness'].map(part => getComputedStyle(one)[`text-decoration-${part}`]).join()"
        )
        legend[kind] = styles
    assert len(set(legend.values())) == len(legend)


def test_details_of_a_token_are_what_verification_saw(visitor: Visitor, api: httpx.Client) -> None:
    page = visitor.open()
    answer = ask(page, "the quick brown fox", **LOSSY)
    entries = whole(api, visitor.asked[0])["choices"][0]["logprobs"]["content"]
    index = next(i for i, entry in enumerate(entries) if entry["provenance"] == "lenient" and entry["token"].strip())
    seen = entries[index]["verification"]
    answer.locator(".token").nth(index).hover()
    facts = page.locator("#token-card")
    expect(facts).to_be_visible()
    told = dict(zip(facts.locator("dt").all_inner_texts(), facts.locator("dd").all_inner_texts(), strict=True))

    def quoted(text: str) -> str:
        return f"“{text.replace(chr(10), '⏎').replace(' ', '·')}”"

    assert told["draft"] == quoted(seen["draft_token"])
    assert told["target's choice"] == quoted(seen["target_token"])
    assert float(told["logit gap"].split()[0]) == pytest.approx(seen["gap"], abs=2e-3)
    assert told["rule"] == "lossy"
    assert float(told["probability"].split()[0]) == pytest.approx(
        100 * math.exp(entries[index]["logprob"]), rel=0.02, abs=0.01
    )
    assert "entropy" not in told  # lossy asks for none


@pytest.mark.parametrize(("kind", "unit"), [("", "nats"), ("full", "of ln V, the most there can be")])
def test_an_entropy_is_told_with_what_it_is_measured_in(visitor: Visitor, kind: str, unit: str) -> None:
    page = visitor.open()
    choose(page.locator("#playground"), verifier="fly", verifier__window=0, verifier__entropy_threshold=0)
    choose(page.locator("#playground"), verifier__entropy=kind, drafter="model", draft_length="fixed", max_tokens=30)
    answer = ask(page, "once upon a time")
    answer.locator("[data-provenance='deferred']").first.hover()
    told = page.locator("#token-card dt", has_text="entropy").locator("+ dd")
    expect(told).to_have_text(re.compile(rf"\d\.\d+ {unit}"))


def test_a_conversation_goes_on_and_can_be_asked_again_under_another_verifier(
    visitor: Visitor, api: httpx.Client
) -> None:
    page = visitor.open()
    page.fill("#system", "be brief")
    ask(page, "one", verifier="off", max_tokens=8)
    ask(page, "two", verifier="strict")
    said = whole(api, visitor.asked[0])["choices"][0]["message"]["content"]
    roles = ["system", "user", "assistant", "user"]
    assert [message["role"] for message in visitor.asked[1]["messages"]] == roles
    assert visitor.asked[1]["messages"][2]["content"] == said
    assert visitor.asked[0]["verifier"] == "off"
    assert "drafter" not in visitor.asked[0]
    page.locator("#playground [name='verifier']").select_option("fly")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#playground .assistant")).to_have_count(2)
    expect(page.locator("#playground .assistant .who").last).to_have_text("fly")
    assert visitor.asked[2]["messages"] == visitor.asked[1]["messages"]
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)


def test_everything_works_from_the_keyboard(visitor: Visitor) -> None:
    page = visitor.open()
    page.keyboard.press("Tab")  # from the message, where typing begins
    page.keyboard.press("Shift+Tab")
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.type("once upon a time")
    page.keyboard.press("Control+Enter")
    answer = page.locator("#playground .assistant")
    expect(answer.locator(".legend li").first).to_be_visible()
    answer.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(answer.locator(".token").nth(1)).to_be_focused()
    expect(answer.locator(".token").nth(1)).to_have_attribute("aria-describedby", "token-card")
    expect(page.locator("#token-card")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#token-card")).to_be_hidden()
    page.locator("#tab-playground").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-compare")).to_be_focused()
    expect(page.locator("#compare")).to_be_visible()
    expect(page.locator("#playground")).to_be_hidden()


def test_the_card_goes_along_with_its_token(visitor: Visitor) -> None:
    page = visitor.open(width=980, height=330)
    answer, card = ask(page, "once upon a time", verifier="off", max_tokens=60), page.locator("#token-card")
    drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    answer.locator(".tokens").evaluate("one => (one.style.fontSize = '3rem')")  # so that it has to be scrolled
    answer.locator(".tokens").focus()
    for key, index in (("End", -1), ("Home", 0)):
        page.keyboard.press(key)  # what gets the focus is scrolled into view
        page.evaluate(drawn)
        expect(card).to_be_visible()
        at, shown = answer.locator(".token").nth(index).bounding_box(), card.bounding_box()
        assert at
        assert shown
        below, above = shown["y"] - at["y"] - at["height"], at["y"] - shown["y"] - shown["height"]
        assert 0 < max(below, above) < 60
    page.locator(".log").evaluate("log => (log.scrollTop = log.scrollHeight)")
    expect(card).to_be_hidden()


STOPS = {
    "Escape": "document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))",
    "button": "document.querySelector('#playground .stop').click()",
}


@pytest.mark.parametrize("how", STOPS)
def test_an_answer_can_be_stopped_and_what_came_stays(visitor: Visitor, how: str) -> None:
    page = visitor.open()
    # An answer that does not end by itself before somebody could stop it, which happens at its first token.
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=endless(route.request.post_data_json)))
    page.evaluate(
        f"""() => new MutationObserver((_, watch) => {{
            if (!document.querySelector(".token")) return;
            watch.disconnect();
            {STOPS[how]};
        }}).observe(document.querySelector(".log"), {{ childList: true, subtree: true }})"""
    )
    page.fill("#message", "once upon a time")
    page.press("#message", "Control+Enter")
    expect(page.locator(".ending")).to_contain_text("Stopped")
    count = page.locator(".token").count()
    assert 0 < count < 220
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert page.locator(".token").count() == count


def test_a_new_chat_forgets_the_answer_that_was_being_made(visitor: Visitor) -> None:
    page = visitor.open()
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=endless(route.request.post_data_json)))
    page.fill("#message", "once upon a time")
    page.press("#message", "Control+Enter")
    expect(page.locator(".token").first).to_be_visible()
    page.get_by_text("New chat").evaluate("button => button.click()")  # hidden meanwhile, but nothing hangs on that
    page.unroute("**/v1/chat/completions")
    ask(page, "another story", max_tokens=4)
    expect(page.locator(".turn")).to_have_count(2)
    assert [message["content"] for message in visitor.asked[-1]["messages"]] == ["another story"]


def endless(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "ignore_eos": True, "verifier": "off", "max_tokens": 220}


def code_of(page: Page, button: str) -> str:
    page.get_by_role("button", name=button).click()
    code = page.locator("dialog[open] textarea").input_value()
    page.keyboard.press("Escape")
    return code


def test_the_request_as_code_is_the_request_and_never_holds_the_key(visitor: Visitor, api: httpx.Client) -> None:
    page = visitor.open()
    text = 'it\'s "quoted",\n$HOME and `ticks` \\ 你好'
    page.fill("#message", text)
    page.locator("#playground [name='verifier']").select_option("fly")
    page.locator("#playground [name='verifier.window']").fill("2")
    page.locator("#playground [name='max_tokens']").fill("12")
    curl, python = code_of(page, "Copy as curl"), code_of(page, "Copy as Python")
    assert KEY not in curl + python
    page.press("#message", "Control+Enter")
    expect(page.locator(".legend li").first).to_be_visible()
    [sent] = visitor.asked
    assert sent["messages"] == [{"role": "user", "content": text}]
    content = whole(api, sent)["choices"][0]["message"]["content"]

    environment = {**os.environ, "SLIPSTREAM_API_KEY": KEY}
    ran = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, env=environment, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(content)
    assert "'verifier': 'fly'" in ran.stdout
    arguments = subprocess.run(
        ["bash", "-c", f'curl() {{ printf "%s\\0" "$@"; }}\n{curl}'],
        capture_output=True, text=True, env=environment, timeout=30, check=True,
    ).stdout.split("\0")  # fmt: skip
    assert f"{visitor.url}/v1/chat/completions" in arguments
    assert f"Authorization: Bearer {KEY}" in arguments
    assert json.loads(arguments[arguments.index("-d") + 1]) == sent
    assert sent["model"] == MODEL
