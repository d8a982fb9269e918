"""Somebody in front of the page: opens it, clicks, reads; and notes what the browser complains about."""

import json
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

SECONDS = 30_000  # milliseconds a step may take on a busy machine


class Visitor:
    """expected: statuses whose lines in the console are no complaint, since the test asks for them."""

    def __init__(self, browser: Browser, url: str, key: str) -> None:
        self._browser, self.url, self.key = browser, url, key
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self.expected: set[int] = set()
        self.asked: list[dict[str, Any]] = []  # bodies of chat requests
        self.paths: list[str] = []  # of every request

    def open(
        self,
        view: str = "",
        with_key: bool = True,
        width: int = 1280,
        height: int = 800,
        first: str = "",
        **context: Any,
    ) -> Page:
        """The page, ready for use; without a key where the server wants one, as far as it gets. first: a script that
        runs before the page's own."""
        opened = self._browser.new_context(viewport={"width": width, "height": height}, **context)
        self._contexts.append(opened)
        if with_key:
            opened.add_init_script(f"sessionStorage.setItem('slipstream-api-key', {json.dumps(self.key)})")
        opened.add_init_script(first)
        page = opened.new_page()
        page.set_default_timeout(SECONDS)
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._see)
        page.goto(f"{self.url}/{view}")
        if with_key:
            page.wait_for_selector("html[data-ready]")
        return page

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(f"status of {status}" in text for status in self.expected):
            self.complaints.append(f"{kind}: {text}")

    def _see(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.complaints.append(f"asked another host: {request.url}")
        self.paths.append(urlsplit(request.url).path)
        if request.method == "POST":
            self.asked.append(request.post_data_json)

    def leave(self) -> None:
        for context in self._contexts:
            context.close()
        assert not self.complaints, self.complaints


def choose(place: Page | Locator, **fields: Any) -> None:
    """Fill in settings by their names; `__` stands for the dot in a verifier's parameter."""
    for name, value in fields.items():
        field = place.locator(f"[name='{name.replace('__', '.')}']")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(str(value))
        else:
            field.fill(str(value))


def ask(page: Page, text: str, **fields: Any) -> Locator:
    """Send a message in the playground; its answer, once it has ended."""
    choose(page.locator("#playground"), **fields)
    before = page.locator("#playground .assistant").count()
    page.fill("#message", text)
    page.press("#message", "Control+Enter")
    answer = page.locator("#playground .assistant").nth(before)
    ended(answer)
    return answer


def ended(answer: Locator) -> None:
    expect(answer.locator(".legend li").first).to_be_visible(timeout=SECONDS)


def tokens_of(answer: Locator) -> list[tuple[str, str]]:
    """(text, provenance) of each token shown."""
    found = answer.locator(".token").evaluate_all("all => all.map(one => [one.textContent, one.dataset.provenance])")
    return [(text, kind) for text, kind in found]


def figures_of(answer: Locator) -> dict[str, str]:
    found = answer.locator(".figures > div").evaluate_all(
        "all => all.map(one => [one.dataset.figure, one.querySelector('dd').textContent])"
    )
    return dict(found)
