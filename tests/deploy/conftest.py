"""One watched server for all tests here: it takes seconds to start."""

from collections.abc import Iterator

import httpx
import pytest

from tests.deploy.traffic import watched_server


@pytest.fixture(scope="package")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client, with a key, of a server that runs until the last test here."""
    with watched_server(tmp_path_factory.mktemp("watched")) as client:
        yield client
