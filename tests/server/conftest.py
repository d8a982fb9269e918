from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from tests.server.serving import running


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with running() as (_, client):
        yield client
