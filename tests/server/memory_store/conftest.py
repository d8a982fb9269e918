from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from server.memory_store.schema import metadata
from tests.server.memory_store import postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    programs = postgres.binaries()
    if programs is None:
        pytest.skip("no PostgreSQL here: initdb and pg_ctl were not found (Debian: apt-get install postgresql)")
    with postgres.running(programs) as url:
        yield url


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of the kind the test is parametrised with, SQLite by default."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/memory.db"
    url: str = request.getfixturevalue("postgres_url")
    engine = create_engine(url)
    metadata.drop_all(engine)
    engine.dispose()
    return url


both_databases = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
