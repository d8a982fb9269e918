"""Serves the page's static files, to everyone: they hold nothing secret. What the page asks of the API needs a key.

The index stands at /, everything else under /web/. A browser may keep files but asks each time whether they have
changed, so that an upgraded server never meets an older page. The page may load, and talk to, this server alone.
"""

import mimetypes
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from server.security import PAGE_FILES

FOLDER = Path(__file__).parent / "static"
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": (
            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
        ),
        "Accept-Ranges": "none",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
)
# Not left to the machine's own table, which may lack them or say otherwise; browsers refuse modules of other types.
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class PageFiles(StaticFiles):
    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        # Files are small and sent whole, as HTTP allows: nobody needs ranges, nor the framework's ways to refuse them.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"range"]
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


def add_page(app: FastAPI) -> None:
    for suffix, kind in _TYPES.items():
        mimetypes.add_type(kind, suffix)
    files = PageFiles(directory=FOLDER)

    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    async def index(request: Request) -> Response:
        return RedirectResponse("../")  # where its own links, which are relative, lead somewhere

    app.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_api_route(f"{PAGE_FILES}/index.html", index, methods=["GET"], include_in_schema=False)
    app.mount(PAGE_FILES, files, name="page")
