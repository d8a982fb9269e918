"""What goes wrong is said kindly, with what to do about it, and nothing that was typed is lost."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

import server.openai_api.chat
from server.web.page import HEADERS
from tests.server.serving import KEY, serve_config
from tests.server.web.conftest import serving
from tests.server.web.visitor import Visitor, ask, choose, ended, tokens_of


def test_a_missing_key_is_asked_for_and_kept_in_the_tab_alone(visitor: Visitor) -> None:
    visitor.expected.add(401)
    page = visitor.open(with_key=False)
    expect(page.locator("dialog[open]")).to_contain_text("You didn't provide an API key")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("dialog[open]")).to_contain_text("Incorrect API key")
    page.locator("#key-input").fill(KEY)
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector("html[data-ready]")
    expect(page.locator("dialog[open]")).to_have_count(0)
    expect(page.locator(".notice")).to_have_count(0)
    ask(page, "once upon a time", max_tokens=4)
    assert KEY not in page.content()
    assert page.evaluate("[...Object.values(localStorage), location.href, document.cookie].join()").find(KEY) < 0


def test_a_key_that_stops_working_costs_nothing_that_was_typed(visitor: Visitor) -> None:
    visitor.expected.add(401)
    page = visitor.open()
    page.evaluate("sessionStorage.setItem('slipstream-api-key', 'expired')")
    page.fill("#message", "a long thought")
    page.press("#message", "Control+Enter")
    expect(page.locator("dialog[open]")).to_contain_text("Incorrect API key")
    page.locator("#key-input").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator("dialog[open]")).to_have_count(0)
    expect(page.locator("#message")).to_have_value("a long thought")
    page.press("#message", "Control+Enter")
    expect(page.locator(".legend li").first).to_be_visible()


@pytest.mark.parametrize(("odd", "told"), [("…", "“…” (U+2026)"), ("\u200b", "an invisible character (U+200B)")])
def test_a_key_that_cannot_be_sent_is_told_from_a_lost_connection(visitor: Visitor, odd: str, told: str) -> None:
    visitor.expected.add(401)
    page = visitor.open(with_key=False)
    page.locator("#key-input").fill(KEY + odd)
    page.keyboard.press("Enter")
    expect(page.locator("dialog[open]")).to_contain_text(told)
    expect(page.locator("#key-input")).to_have_value(KEY + odd)
    page.locator("#key-input").fill(KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready]")
    page.evaluate("key => sessionStorage.setItem('slipstream-api-key', key)", KEY + odd)
    page.fill("#message", "a long thought")
    page.press("#message", "Control+Enter")
    expect(page.locator("dialog[open]")).to_contain_text(told)
    expect(page.locator("#message")).to_have_value("a long thought")


REFUSED = """for (const name of ["localStorage", "sessionStorage"]) {
    Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
}"""


def test_a_browser_that_keeps_nothing_for_sites_will_do(visitor: Visitor) -> None:
    visitor.expected.add(401)
    page = visitor.open(with_key=False, first=REFUSED, color_scheme="dark")
    page.locator("#key-input").fill(KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready]")
    page.get_by_role("button", name="Switch to the light theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    ask(page, "once upon a time", max_tokens=4)


def test_a_server_that_restarts_behind_a_proxy_is_waited_for(visitor: Visitor) -> None:
    visitor.expected.add(502)
    page = visitor.open()
    page.clock.install()
    page.route("**/v1/models", lambda route: route.fulfill(status=502, body="<html>bad gateway"))
    page.reload()
    notice = page.locator("#connection .notice")
    expect(notice).to_contain_text("cannot reach it")
    notice.evaluate("one => (one.dataset.mark = 'same')")
    with page.expect_response("**/v1/models"):
        notice.get_by_role("button", name="Try again").click()
    with page.expect_response("**/v1/models"):  # and by itself
        page.clock.fast_forward(2000)
    expect(notice).to_have_attribute("data-mark", "same")  # said once, not at each try
    page.unroute("**/v1/models")
    page.clock.fast_forward(2000)
    page.wait_for_selector("html[data-ready]")
    expect(notice).to_have_count(0)


def test_a_fault_of_the_page_is_not_blamed_on_the_connection(visitor: Visitor) -> None:
    page = visitor.open()
    broken = {"status": 200, "content_type": "text/event-stream", "body": "data: {broken\n\n"}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**broken))
    page.fill("#message", "precious words")
    page.press("#message", "Control+Enter")
    expect(page.locator("#playground .notice")).to_contain_text("That did not work")
    expect(page.locator("#message")).to_have_value("precious words")
    [complaint] = visitor.complaints
    assert "SyntaxError" in complaint
    visitor.complaints.clear()


def test_an_answer_that_breaks_off_is_a_lost_connection(visitor: Visitor) -> None:
    told = visitor.open().evaluate(
        """async () => {
            const { events } = await import("/web/js/sse.js");
            const seen = [];
            const body = new ReadableStream({
                start: (stream) => stream.enqueue(new TextEncoder().encode("data: one\\n\\ndata: tw")),
                pull: (stream) => stream.error(new TypeError("network error")),
            }, { highWaterMark: 0 });
            try {
                for await (const data of events(body)) seen.push(data);
            } catch (error) {
                return [seen, error.status, error.message];
            }
        }"""
    )
    assert told == [["one"], 0, "The server cannot be reached. Is it running, and are you connected?"]


def test_a_refused_second_try_leaves_the_first_answer(visitor: Visitor) -> None:
    visitor.expected.add(429)
    page = visitor.open()
    answer = ask(page, "once upon a time", max_tokens=12)
    before = tokens_of(answer)
    busy = {"status": 429, "json": {"error": {"message": "queue_full", "param": None}}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**busy), times=1)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#playground .notice")).to_contain_text("The server is busy")
    assert tokens_of(answer) == before
    expect(page.locator("#message")).to_have_value("")
    page.locator("#playground .notice").get_by_role("button", name="Try again").click()
    ended(answer)
    expect(page.locator("#playground .assistant")).to_have_count(1)
    assert visitor.asked[0] == visitor.asked[1] == visitor.asked[2]


def test_a_refusal_is_the_servers_message_and_marks_the_field(visitor: Visitor) -> None:
    visitor.expected.add(400)
    page = visitor.open()
    choose(page.locator("#playground"), verifier="fly", verifier__window=9, num_draft_tokens=4)
    page.fill("#message", "precious words")
    page.press("#message", "Control+Enter")
    notice = page.locator("#playground .notice")
    expect(notice).to_contain_text("verifier.window must be smaller than num_draft_tokens")
    expect(notice).to_have_attribute("role", "alert")
    expect(page.locator("#playground [name='verifier.window']")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#message")).to_have_value("precious words")
    expect(page.locator(".turn")).to_have_count(0)
    choose(page.locator("#playground"), verifier__window=2)
    page.get_by_role("button", name="Send again").click()
    expect(page.locator(".legend li").first).to_be_visible()
    expect(notice).to_have_count(0)


def test_what_no_server_would_take_is_not_sent(visitor: Visitor) -> None:
    page = visitor.open()
    choose(page.locator("#playground"), temperature=9)
    page.fill("#message", "x")
    page.press("#message", "Control+Enter")
    assert page.locator("#playground [name='temperature']").evaluate("field => field.validity.rangeOverflow")
    assert visitor.asked == []
    expect(page.locator("#message")).to_have_value("x")


def test_a_lost_connection_is_told_and_the_text_stays(visitor: Visitor) -> None:
    page = visitor.open()
    page.context.set_offline(True)
    page.fill("#message", "still here")
    page.press("#message", "Control+Enter")
    expect(page.locator("#playground .notice")).to_contain_text("cannot be reached")
    expect(page.locator("#message")).to_have_value("still here")
    page.context.set_offline(False)
    page.get_by_role("button", name="Send again").click()
    expect(page.locator(".legend li").first).to_be_visible()
    assert all("ERR_INTERNET_DISCONNECTED" in line for line in visitor.complaints)
    visitor.complaints.clear()


def test_what_a_model_or_a_person_writes_is_text_and_nothing_else(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    markup = "<img src=x onerror=alert(1)>"
    real = server.openai_api.chat.with_reading

    def scripted(plan: Any, use: Any, model: Any) -> Any:
        constraint = model.constraints.lark(f'start: "{markup}"')
        return dataclasses.replace(real(plan, use, model), constraint=constraint)

    monkeypatch.setattr(server.openai_api.chat, "with_reading", scripted)
    page = visitor.open()
    page.on("dialog", lambda dialog: visitor.complaints.append("markup ran"))
    answer = ask(page, markup)
    expect(answer.locator(".tokens")).to_contain_text(markup)
    expect(page.locator(".user p")).to_have_text(markup)
    assert page.locator("main img").count() == 0
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


@pytest.fixture(scope="module")
def restricted(browser: Browser) -> Iterator[Visitor]:
    config = serve_config(api_keys=(), allowed_verifiers=("strict", "fly"), default_num_draft_tokens=11)
    with serving(config) as url:
        yield Visitor(browser, url, "")


def test_only_what_the_server_allows_is_offered_and_an_open_server_asks_for_no_key(restricted: Visitor) -> None:
    page = restricted.open(with_key=False)
    page.wait_for_selector("html[data-ready]")
    offered = page.locator("#playground [name='verifier'] option").all_inner_texts()
    assert offered == ["strict", "fly"]
    expect(page.locator("#playground [name='num_draft_tokens']")).to_have_attribute("placeholder", "11")
    ask(page, "once upon a time", max_tokens=4)
    page.get_by_role("button", name="Copy as curl").click()
    assert "Authorization" not in page.locator("dialog[open] textarea").input_value()
    restricted.leave()
