"""Light and dark, phone and desk, and what a screen reader is told."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.server.web.visitor import Visitor, ask, choose

VIEWS = ["playground", "compare", "live"]
UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea")].filter((one) =>
    one.checkVisibility() && !one.labels?.length && !one.textContent.trim()
    && !one.getAttribute("aria-label") && !one.getAttribute("aria-labelledby")).map((one) => one.outerHTML)"""
COLOURS = """(pairs) => pairs.map(([front, back]) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    return [front, back].map((name) => {
        const probe = document.body.appendChild(document.createElement("i"));
        probe.style.color = `var(--${name})`;
        canvas.fillStyle = getComputedStyle(probe).color;
        canvas.fillRect(0, 0, 1, 1);
        probe.remove();
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    });
})"""
PAIRS = [("text", "page"), ("text", "surface"), ("muted", "page"), ("muted", "raised"), ("accent", "surface")]
PAIRS += [("on-accent", "accent"), ("danger", "surface"), ("warning", "page"), ("text", "danger-tint")]
KINDS = ("native", "bonus", "correction", "deferred", "calibrated", "lenient", "typical")
LINES = [(kind, "page") for kind in KINDS]


def luminance(colour: list[int]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(front: list[int], back: list[int]) -> float:
    high, low = sorted((luminance(front), luminance(back)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def background(page: Page) -> float:
    [[front, _]] = page.evaluate(COLOURS, [("page", "page")])
    return luminance(front)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(visitor: Visitor, scheme: Any) -> None:
    page = visitor.open(color_scheme=scheme)
    for pairs, least in ((PAIRS, 4.5), (LINES, 3.0)):
        for names, (front, back) in zip(pairs, page.evaluate(COLOURS, pairs), strict=True):
            assert contrast(front, back) >= least, names


def test_the_theme_is_the_systems_until_one_is_picked_and_then_stays(visitor: Visitor) -> None:
    page = visitor.open(color_scheme="dark")
    assert background(page) < 0.05
    page.get_by_role("button", name="Switch to the light theme").click()
    assert background(page) > 0.8
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert background(page) > 0.8
    expect(page.get_by_role("button", name="Switch to the dark theme")).to_be_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_sticks_out_of_a_phone_and_every_control_has_a_name(visitor: Visitor, view: str) -> None:
    page = visitor.open(f"#{view}", width=390, height=844, has_touch=True, is_mobile=True)
    expect(page.locator(f"#{view}")).to_be_visible()
    if view == "playground":
        page.locator("summary", has_text="Settings").click()
        choose(page.locator("#playground"), verifier="hybrid", max_tokens=60)
        ask(page, "once upon a time " * 6)
    if view == "live":
        expect(page.locator(".chart canvas").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(UNNAMED) == []


def test_a_tap_shows_a_tokens_details(visitor: Visitor) -> None:
    page = visitor.open(width=390, height=844, has_touch=True, is_mobile=True)
    page.locator("summary", has_text="Settings").click()
    answer = ask(page, "once upon a time", max_tokens=20)
    answer.locator(".token").nth(2).tap()
    expect(page.locator("#token-card")).to_be_visible()
    box = page.locator("#token-card").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


def test_screen_readers_are_told_the_end_and_not_every_token(visitor: Visitor) -> None:
    page = visitor.open()
    ask(page, "once upon a time", max_tokens=20)
    expect(page.locator("#status")).to_have_text(re.compile(r"20 tokens, \d+ of them loosened\."))
    assert page.locator(".log").get_attribute("aria-live") == "off"
    assert page.locator("[aria-live=polite], [aria-live=assertive]").count() == 0
