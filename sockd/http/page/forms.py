"""The forms of the page, as browsers send them. Owns nothing."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.requests import Request

from sockd.base.errors import BadRequest
from sockd.http.uploads import read_body

FORM = "application/x-www-form-urlencoded"


async def read_fields(request: Request, names: Sequence[str], most_bytes: int) -> list[str]:
    """The values of a form's fields, empty if one is missing. Raises: BadRequest, RequestTooLarge, ClientDisconnect."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise BadRequest(f"forms of this page come as {FORM}")
    body = await read_body(request, most_bytes)
    try:
        found = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=len(names), errors="strict")
    except ValueError:  # UnicodeDecodeError is one, too
        raise BadRequest("this form cannot be read") from None
    return [found.get(name, [""])[-1].strip() for name in names]
