"""The page's files: open to everyone, cached honestly, complete in an installed package, and from this server alone."""

import hashlib
import re
import shutil
from pathlib import Path

import httpx
import pytest
from setuptools import Distribution

from server.web.page import FOLDER
from tests.server.serving import KEY, error_of

ROOT = Path(__file__).parents[2]
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
NO_KEY = {"Authorization": ""}


async def test_the_page_needs_no_key_and_may_use_this_server_alone(client: httpx.AsyncClient) -> None:
    for path in ("/", "/web/js/main.js"):
        answer = await client.get(path, headers=NO_KEY)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert KEY not in (await client.get("/")).text
    error_of(await client.post("/", json={"inputs": "x"}, headers=NO_KEY), 401)


async def test_a_browser_may_keep_files_and_is_told_when_they_are_still_good(client: httpx.AsyncClient) -> None:
    kinds = {
        "/": "text/html; charset=utf-8",
        "/web/js/main.js": "text/javascript; charset=utf-8",
        "/web/style/base.css": "text/css; charset=utf-8",
        "/web/icon.svg": "image/svg+xml",
    }
    for path, kind in kinds.items():
        first = await client.get(path, headers=NO_KEY)
        assert first.headers["content-type"] == kind
        assert first.headers["cache-control"] == "no-cache"
        again = await client.get(path, headers={**NO_KEY, "If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        head = await client.head(path, headers=NO_KEY)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(first.content))


async def test_there_is_nothing_else_to_be_had(client: httpx.AsyncClient) -> None:
    for path in ("/web/", "/web/none.js", "/web/%2e%2e/page.py", "/web/..%2f..%2fapp.py", "/web/js"):
        error_of(await client.get(path, headers=NO_KEY), 404, code="unknown_url")


@pytest.mark.parametrize("asked", ["x", "bytes=0-9", "bytes=99999999-", "bytes=" + ",".join(["0-"] * 500)])
async def test_files_are_sent_whole_whatever_range_is_asked_for(client: httpx.AsyncClient, asked: str) -> None:
    for path in ("/", "/web/js/main.js"):
        whole = await client.get(path, headers=NO_KEY)
        answer = await client.get(path, headers={**NO_KEY, "Range": asked})
        assert (answer.status_code, answer.content) == (200, whole.content)
        assert answer.headers["accept-ranges"] == "none"


async def test_files_can_only_be_read_and_say_so(client: httpx.AsyncClient) -> None:
    for path in ("/web/js/main.js", "/web/none.js"):
        answer = await client.put(path, content=b"x")
        error_of(answer, 405)
        assert answer.headers["allow"] == "GET, HEAD"


async def test_the_index_has_one_address(client: httpx.AsyncClient) -> None:
    answer = await client.get("/web/index.html", headers=NO_KEY)
    assert answer.status_code == 307
    assert answer.url.join(answer.headers["location"]).path == "/"


def test_every_file_that_is_named_exists_and_none_is_from_elsewhere() -> None:
    named = set()
    for path in [FOLDER / "index.html", *(FOLDER / "js").glob("*.js")]:
        text = path.read_text()
        assert not re.search(r"(?:src|href|from|import\()\s*=?\s*[\"'(]+(?:https?:)?//", text), path
        for found in re.findall(r"(?:from |import\()\"(\.[^\"]+)\"", text):
            named.add((path.parent / found).resolve().relative_to(FOLDER))
        for found in re.findall(r"(?:src|href)=\"web/([^\"]+)\"", text):
            named.add(Path(found))
    assert {str(path) for path in named} <= set(FILES)
    scripts = {name for name in FILES if name.startswith("js/")}
    assert scripts == {str(path) for path in named if path.suffix == ".js" and path.parts[0] == "js"}
    assert len(scripts) > 15


def test_what_others_wrote_is_unchanged_and_carries_its_licence() -> None:
    vendor = FOLDER / "vendor"
    listed = dict(reversed(line.split()) for line in (vendor / "uPlot.VERSION").read_text().splitlines()[1:])
    assert set(listed) == {path.name for path in vendor.iterdir() if path.suffix in (".js", ".css")}
    for name, checksum in listed.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == checksum
    assert "MIT" in (vendor / "uPlot.LICENSE").read_text()


def test_an_installed_package_has_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "server" / "web", tmp_path / "server" / "web")
    (tmp_path / "server" / "__init__.py").touch()
    (tmp_path / "README.md").touch()
    monkeypatch.chdir(tmp_path)
    distribution = Distribution()
    distribution.script_name = "setup.py"  # what a build would say; there is none
    distribution.parse_config_files(["pyproject.toml"])
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    packed = {str(Path(folder or ".") / name) for _, folder, _, names in build.data_files for name in names}
    assert {name.removeprefix("server/web/static/") for name in packed} == set(FILES)
