"""Side by side: one prompt under two verifiers, and where the answers part."""

import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.server.serving import ok
from tests.server.web.visitor import Visitor, choose, ended, figures_of, tokens_of


def run_both(page: Page, left: dict[str, Any], right: dict[str, Any], order: str = "together") -> None:
    halves = page.locator("#compare .half")
    for index, settings in enumerate((left, right)):
        choose(halves.nth(index), **settings)
    choose(page.locator("#compare"), max_tokens=40)
    page.get_by_label("run", exact=True).select_option(order)
    page.get_by_label("prompt", exact=True).fill("once upon a time")
    page.get_by_label("prompt", exact=True).press("Control+Enter")
    for index in range(2):
        ended(halves.nth(index))


@pytest.mark.parametrize("order", ["together", "turns"])
def test_equal_answers_are_called_equal(visitor: Visitor, order: str) -> None:
    page = visitor.open("#compare")
    run_both(page, {"verifier": "off"}, {"verifier": "strict"}, order)
    expect(page.locator(".verdict")).to_contain_text("the same, token for token")
    expect(page.locator(".verdict")).to_contain_text(re.compile(r"strict runs at \d+\.\d\d×"))
    left, right = (page.locator("#compare .half").nth(index) for index in range(2))
    assert [text for text, _ in tokens_of(left)] == [text for text, _ in tokens_of(right)]
    assert {kind for _, kind in tokens_of(left)} == {"target"}
    for side in (left, right):
        figures = figures_of(side)
        assert figures["tokens"] == "40"
        assert float(figures["tokens/s"]) > 0
        assert float(figures["τ"]) >= 1
    assert float(figures_of(right)["est. speedup"].removesuffix("×")) > 0
    assert figures_of(left)["est. speedup"] == "–"
    expect(page.locator(".token.parts")).to_have_count(0)


def test_the_first_token_that_differs_is_marked_on_both_sides(visitor: Visitor, api: httpx.Client) -> None:
    page = visitor.open("#compare")
    loose = {"verifier": "lossy", "verifier__threshold": 0.05, "drafter": "model", "draft_length": "fixed"}
    run_both(page, {"verifier": "strict"}, loose)
    answers = [
        [
            entry["token"]
            for entry in ok(
                api.post("/v1/chat/completions", json={k: v for k, v in body.items() if not k.startswith("stream")})
            )["choices"][0]["logprobs"]["content"]
        ]
        for body in visitor.asked
    ]
    index = next(i for i, (one, other) in enumerate(zip(*answers, strict=True)) if one != other)
    expect(page.locator(".verdict")).to_contain_text(f"part at token {index + 1}.")
    marked = page.locator(".token.parts").evaluate_all("all => all.map(one => Number(one.dataset.index))")
    assert marked == [index, index]


def test_one_side_may_fail_while_the_other_answers(visitor: Visitor) -> None:
    visitor.expected.add(400)
    page = visitor.open("#compare")
    halves = page.locator("#compare .half")
    choose(halves.nth(0), verifier="off")
    choose(halves.nth(1), verifier="fly", verifier__window=9, num_draft_tokens=4)
    page.get_by_label("prompt", exact=True).fill("once upon a time")
    page.get_by_role("button", name="Run both").click()
    ended(halves.nth(0))
    expect(halves.nth(1).get_by_role("alert")).to_contain_text("verifier.window must be smaller")
    expect(halves.nth(1).locator("[name='verifier.window']")).to_have_attribute("aria-invalid", "true")
