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
from tests.server.web.visitor import Visitor, ask, choose


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
