"""Fixtures of every dialect that OpenAI's clients speak."""

from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from tests.server.openai_api.calls import ROOM
from tests.server.serving import running, serve_config


@pytest_asyncio.fixture
async def thinker() -> AsyncIterator[httpx.AsyncClient]:
    """A server whose model thinks aloud."""
    async with running(serve_config(reasoning_parser="think"), max_context=ROOM) as (_, client):
        yield client
