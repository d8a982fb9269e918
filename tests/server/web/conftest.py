"""The page in a real browser, before a real server that runs in a thread of its own.

Playwright keeps an event loop running in the tests' thread as long as the browser lives, so tests that are coroutines
have no place in this package.
"""

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from server.serving_config import ServingConfig
from tests.server.listening import listening
from tests.server.serving import KEY
from tests.server.web.visitor import Visitor

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = next(filter(None, map(shutil.which, BROWSERS)), own if Path(own).exists() else None)
        if found is None:
            pytest.skip("no browser: install chromium (apt-get install chromium) or run 'playwright install chromium'")
        # Chromium's sandbox refuses to work for root, as whom containers run.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


@contextmanager
def serving(config: ServingConfig | None = None) -> Iterator[str]:
    """The base address of a server that runs until the end of the block."""
    began: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        ended = asyncio.Event()
        async with listening(config) as (_, url):
            began.set_result((url.removesuffix("/v1"), asyncio.get_running_loop(), ended))
            await ended.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as error:
            if began.done():
                raise
            began.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    url, loop, ended = began.result(60)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)


@pytest.fixture(scope="package")
def url() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture(scope="package")
def api(url: str) -> Iterator[httpx.Client]:
    """The same server without the page."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        yield client


@pytest.fixture
def visitor(browser: Browser, url: str) -> Iterator[Visitor]:
    """Somebody who opens the page; nothing may go wrong behind the scenes, nor leave this server, while they do."""
    visitor = Visitor(browser, url, KEY)
    yield visitor
    visitor.leave()
