"""A PostgreSQL of the tests' own, in a folder of its own, reached by a socket there."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDERS = ("/usr/lib/postgresql", "/usr/local/lib/postgresql", "/opt/homebrew/opt")


def binaries() -> Path | None:
    """The folder of initdb and pg_ctl; None where there is no PostgreSQL. Debian keeps them out of the PATH."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = [file.parent for folder in FOLDERS for file in Path(folder).glob("*/bin/initdb")]
    return max(versions, default=None, key=lambda folder: folder.parent.name.rpartition("@")[2].zfill(4))


@contextmanager
def running(programs: Path) -> Iterator[str]:
    """The URL of a fresh cluster. It refuses to run as root, so root hands it to its own user."""
    as_root = os.geteuid() == 0
    before = ["runuser", "-u", "postgres", "--"] if as_root else []
    # Not pytest's folder, which others may not enter, and short, for the socket's path.
    folder = Path(tempfile.mkdtemp(prefix="slipstream-pg-"))
    try:
        if as_root:
            shutil.chown(folder, "postgres", "postgres")
        data = str(folder / "data")
        call([*before, str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "slipstream", "--no-sync"])
        options = f"-c listen_addresses='' -c fsync=off -c unix_socket_directories={folder}"
        call([*before, str(programs / "pg_ctl"), "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start"])
        try:
            yield f"postgresql+psycopg://slipstream@/postgres?host={folder}"
        finally:
            call([*before, str(programs / "pg_ctl"), "-D", data, "-w", "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def call(command: list[str]) -> None:
    # To a file's end rather than a pipe's: the server inherits it and would hold a pipe open.
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, cwd="/", timeout=120)
        said.seek(0)
        assert done.returncode == 0, said.read()
