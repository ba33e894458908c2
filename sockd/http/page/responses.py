"""Answers of the page: HTML from templates, static files, and the headers that every one of them carries.

Owns the templates' environment and the static files, both loaded with the first answer, in threads.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from sockd.base.errors import SockdError
from sockd.http.page import assets
from sockd.http.page.access import KeyNeeded
from sockd.http.page.rendering import Rendering

SECURITY: Final = {
    # Scripts and style from here only, and none in the text: what a function prints can run nothing, escaped or not.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: browsers would send `Origin: null` with the form of a test event (Fetch, 3.2).
    "referrer-policy": "same-origin",
    # Pages of functions have this origin, too; what they open of ours, they have no hold of.
    "cross-origin-opener-policy": "noopener-allow-popups",
}
KNOWS_NOOPENER: Final = re.compile(r'"Chromium";v="(?:12[5-9]|1[3-9]\d|[2-9]\d\d)"')
"""Browsers that do (Sec-CH-UA, which no script can set). The others get the page in a sandbox, an origin of its own; for
these that would be a new process for each page, which takes longer than all the rest."""
SANDBOX: Final = "; sandbox allow-scripts allow-forms"
HOST: Final = re.compile(r"[A-Za-z0-9.-]+(?::\d+)?")
PRIVATE: Final = {**SECURITY, "cache-control": "no-store", "cross-origin-resource-policy": "same-origin"}


class Responses:
    """What the handlers of a page answer with."""

    def __init__(self, *, in_group: bool = False) -> None:
        """Args: in_group: whether pages lead to that of the group."""
        self._in_group = in_group
        self.rendering = Rendering()
        self._assets: dict[str, assets.Asset] = {}

    async def static(self, request: Request) -> Response:
        """A static file, or a 404."""
        asset = (await self._all_assets()).get(request.path_params["name"])
        if asset is None:
            return Response("no such file\n", 404, SECURITY, "text/plain")
        headers = {**SECURITY, "cache-control": assets.CACHE, "vary": "accept-encoding"}
        if takes_gzip(request):
            return Response(asset.packed, 200, {**headers, "content-encoding": "gzip"}, asset.media_type)
        return Response(asset.body, 200, headers, asset.media_type)

    async def html(self, request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
        """A template with its values."""
        common = {
            "asset": {name: asset.url for name, asset in (await self._all_assets()).items()},
            "path": request.url.path,
            "in_group": self._in_group,
        }
        html = (await self.rendering.render(template, {**common, **values})).encode()
        headers = {**PRIVATE, "vary": "accept-encoding, sec-ch-ua"}
        if not KNOWS_NOOPENER.search(request.headers.get("sec-ch-ua", "")):
            headers["content-security-policy"] = sandboxed(request.headers.get("host", ""))
        if takes_gzip(request):
            html = await asyncio.to_thread(partial(gzip.compress, html, 5, mtime=0))
            headers["content-encoding"] = "gzip"
        return Response(html, status, headers, "text/html")

    async def error(self, request: Request, error: SockdError) -> Response:
        """An error as a page."""
        values = {"status": error.status, "kind": error.error_type, "message": error.message}
        response = await self.html(request, "error.html", values, error.status)
        if isinstance(error, KeyNeeded):
            response.headers["www-authenticate"] = 'Basic realm="sockd", charset="UTF-8"'
        return response

    async def _all_assets(self) -> dict[str, assets.Asset]:
        if not self._assets:
            self._assets = await asyncio.to_thread(assets.load)
        return self._assets


def sandboxed(host: str) -> str:
    """The policy of a page that is an origin of its own, for which 'self' is not in all browsers where it came from."""
    own = f"'self' {host}" if HOST.fullmatch(host) else "'self'"
    return SECURITY["content-security-policy"].replace("'self'", own) + SANDBOX


def takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")
