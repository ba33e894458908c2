"""A function's result as an HTTP answer, by AWS's rules for function URLs.

    {"statusCode": ..., "headers"?, "cookies"?, "body"?, "isBase64Encoded"?}   that answer
    any other JSON                                                            200, application/json
    a string                                                                  200, the text itself

Pure. Nothing of it can end a header or begin another: names are tokens, values have no control characters, and what only
two neighbours may say to each other is dropped. Reading takes a few ms per megabyte: not on the loop, for large ones.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from sockd.base.errors import SockdError
from sockd.http.server.messages.fields import field, passes

HEADERS_BYTES = 64 * 1024
"""The most bytes of all headers that a function sends along (AWS: 10,240 bytes)."""
MOST_FIELDS = 256
"""Headers and cookies together: each takes some µs."""
JSON = "application/json"
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

Fields = list[tuple[str, str]]
"""Headers, names in lower case; values are latin-1."""


class BadReply(SockdError):
    """The function returned what cannot be an HTTP answer; the message says why."""

    status = 502
    error_type = "Function.InvalidResponse"


class Reply(NamedTuple):
    """An HTTP answer of a function."""

    status: int
    fields: Fields
    body: bytes


class _Returned(msgspec.Struct, rename={"status_code": "statusCode", "is_base64": "isBase64Encoded"}):
    """An object, looked into only where it may say something; the rest is skipped."""

    status_code: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    headers: msgspec.Raw = msgspec.Raw(b"null")
    cookies: msgspec.Raw = msgspec.Raw(b"null")
    body: msgspec.Raw = msgspec.Raw(b"null")
    is_base64: msgspec.Raw = msgspec.Raw(b"false")


_returned = msgspec.json.Decoder(_Returned)
_Value = str | int | float | bool
_small: dict[str, msgspec.json.Decoder[Any]] = {
    "statusCode": msgspec.json.Decoder(int | str),
    "headers": msgspec.json.Decoder(dict[str, _Value | list[_Value] | None] | None),
    "cookies": msgspec.json.Decoder(list[str] | None),
    "isBase64Encoded": msgspec.json.Decoder(bool | None),
}


def reply(body: bytes) -> Reply:
    """Args: body: what the function returned, supposedly JSON. Raises: BadReply."""
    try:
        first = body.lstrip()[:1]
        if first == b'"':
            return Reply(200, [("content-type", JSON)], msgspec.json.decode(body, type=str).encode())
        if first != b"{":
            return Reply(200, [("content-type", JSON)], body)
        returned = _returned.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadReply(f"the function's answer is not JSON: {error}") from None
    if returned.status_code is msgspec.UNSET:
        return Reply(200, [("content-type", JSON)], body)
    return _reply(returned)


def metadata(text: bytes) -> tuple[int, Fields]:
    """Status and headers of an answer whose body comes behind them. Raises: BadReply."""
    try:
        return _head(_returned.decode(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadReply(f"the answer's metadata are not JSON: {error}") from None


def _head(returned: _Returned) -> tuple[int, Fields]:
    status = returned.status_code
    return (
        200 if status is msgspec.UNSET else check_status(_decoded("statusCode", status)),
        checked_fields(_decoded("headers", returned.headers), _decoded("cookies", returned.cookies)),
    )


def _reply(returned: _Returned) -> Reply:
    status, fields = _head(returned)
    raw = bytes(returned.body).lstrip()
    if raw[:1] == b'"':
        try:
            content = msgspec.json.decode(raw, type=str).encode()
        except (msgspec.DecodeError, UnicodeError) as error:
            raise BadReply(f"body: {error}") from None
    else:
        content = b"" if raw == b"null" else raw
    if _decoded("isBase64Encoded", returned.is_base64):
        try:
            content = base64.b64decode(content, validate=True)
        except binascii.Error as error:
            raise BadReply(f"isBase64Encoded is true, but the body is not base64: {error}") from None
    return Reply(status, fields, content)


def check_status(value: int | str) -> int:
    """A status that may end an exchange. Raises: BadReply."""
    if isinstance(value, str) and re.fullmatch("[0-9]{3}", value):
        value = int(value)
    if not isinstance(value, int) or not 200 <= value <= 599:
        raise BadReply(f"statusCode {value!r:.50} is none: use 200 to 599")
    return value


def checked_fields(headers: Any, cookies: Any) -> Fields:
    """Headers that may be sent, with a content type among them, and a Set-Cookie for each cookie.

    Args: headers: dict of values or of lists of values, or None; cookies: list of str, or None.
    Raises: BadReply."""
    check_count(headers or {}, cookies or ())
    given: dict[str, list[str]] = {"content-type": [JSON]}
    for name, value in (headers or {}).items():
        lowered = name.lower()
        if not _TOKEN.fullmatch(name):
            raise BadReply(f"headers: {name[:80]!r} cannot be the name of a header")
        if passes(lowered) and value is not None:
            values = value if isinstance(value, list) else [value]
            given[lowered] = [_value(each, lowered) for each in values]
    fields = [(name, value) for name, values in given.items() for value in values]
    fields += [("set-cookie", _value(cookie, "cookies")) for cookie in cookies or ()]
    check_size(fields)
    return fields


def check_count(headers: dict[str, Any], cookies: Any) -> None:
    """Raises: BadReply."""
    count = len(cookies) + sum(len(value) if isinstance(value, list) else 1 for value in headers.values())
    if count > MOST_FIELDS:
        raise BadReply(f"headers: there are {count} with the cookies; at most {MOST_FIELDS} are sent")


def check_size(fields: Iterable[tuple[str, str]]) -> None:
    """Raises: BadReply."""
    if sum(len(name) + len(value) + 4 for name, value in fields) > HEADERS_BYTES:
        raise BadReply(f"headers: together they may have {HEADERS_BYTES} bytes")


def lines(fields: Iterable[tuple[str, str]]) -> str:
    """Headers as they are written."""
    return "".join(field(name, value) for name, value in fields)


def _value(value: _Value, where: str) -> str:
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    text = text.strip(" \t")
    if _CONTROL.search(text):
        raise BadReply(f"{where}: its value has control characters")
    if text.isascii():
        return text
    # What a header can say beyond ASCII is bytes: those of UTF-8, one character each.
    return text.encode("utf-8", "replace").decode("latin-1")


def _decoded(name: str, raw: Any) -> Any:
    if memoryview(raw).nbytes > 2 * HEADERS_BYTES:
        raise BadReply(f"{name}: its JSON may have {2 * HEADERS_BYTES} bytes")
    try:
        return _small[name].decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadReply(f"{name}: {error}") from None
