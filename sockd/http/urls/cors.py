"""CORS headers according to a URL's settings (Fetch standard, 3.2).

Pure. With settings, sockd answers preflights and drops the function's CORS headers; without, the function handles CORS. An origin
that is not allowed gets an answer, which the browser hides from the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sockd.functions.registry.function_url import Cors
from sockd.http.urls.response import Fields

_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")
_VISIBLE = re.compile(r"[\x21-\x7e]{1,300}")


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser asks for permission."""
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


def preflight(cors: Cors, headers: Mapping[str, str]) -> Fields:
    """The answer to a preflight; args: headers: of the request, names in lower case."""
    fields = _origin(cors, headers["origin"])
    if not any(name == "access-control-allow-origin" for name, _ in fields):
        return fields
    methods = _allowed(cors, cors.allow_methods, headers["access-control-request-method"])
    names = _allowed(cors, cors.allow_headers, headers.get("access-control-request-headers", ""))
    if methods:
        fields.append(("access-control-allow-methods", methods))
    if names:
        fields.append(("access-control-allow-headers", names))
    if cors.max_age:
        fields.append(("access-control-max-age", str(cors.max_age)))
    return fields


def with_cors(cors: Cors | None, fields: Fields, origin: str | None) -> Fields:
    """A function's headers as they are sent; args: origin: of the page that asked, if a page did."""
    if cors is None:
        return fields
    kept = [(name, value) for name, value in fields if not name.startswith("access-control-")]
    fields = _origin(cors, origin or "")
    if cors.expose_headers and any(name == "access-control-allow-origin" for name, _ in fields):
        fields.append(("access-control-expose-headers", ",".join(cors.expose_headers)))
    return [*kept, *fields]


def _origin(cors: Cors, origin: str) -> Fields:
    """Whether pages of this origin may read the answer. Caches must know that it depends on who asks."""
    every = "*" in cors.allow_origins
    if every and not cors.allow_credentials:
        return [("access-control-allow-origin", "*")]
    fields = [("vary", "Origin")]
    known = origin.lower() in (allowed.lower() for allowed in cors.allow_origins)
    if known or (every and _VISIBLE.fullmatch(origin)):
        fields.append(("access-control-allow-origin", origin))
        if cors.allow_credentials:
            fields.append(("access-control-allow-credentials", "true"))
    return fields


def _allowed(cors: Cors, configured: list[str], asked: str) -> str:
    """A list for an answer. A browser takes * literally where credentials are sent: there it is what was asked for."""
    if "*" in configured and cors.allow_credentials:
        return asked if _NAMES.fullmatch(asked) else ""
    return ",".join(configured)
