"""A request as the event of AWS's payload format 2.0.

Pure. Building an event takes a few ms per megabyte of body: not on the loop, for large ones.
"""

from __future__ import annotations

import base64
import time
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import msgspec

from sockd.base.function_arns import ACCOUNT
from sockd.http.server.messages.fields import HOP_BY_HOP
from sockd.http.server.messages.head import Headers

TEXT_TYPES = ("text", "json", "xml", "form-urlencoded", "javascript")
"""What a content type says of a body that is text; any other body is in base64."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DEFAULT = "$default"


class UrlRequest(NamedTuple):
    """A request to a function URL, as it came."""

    url_id: str
    domain: str
    """The URL's name."""
    method: str
    path: str
    """Undecoded."""
    query: str
    version: str
    """The version of HTTP."""
    headers: Headers
    source_ip: str
    server_port: int
    request_id: str
    time_s: float
    """Unix time."""
    access_key: str = ""
    """Who signed it, if that was looked at."""


def event(request: UrlRequest, body: bytes) -> bytes:
    """The event, JSON."""
    headers = event_headers(request)
    fields: dict[str, Any] = {
        "version": "2.0",
        "routeKey": _DEFAULT,
        "rawPath": request.path,
        "rawQueryString": request.query,
        "headers": headers,
        "requestContext": _context(request, headers.get("user-agent", "")),
        "isBase64Encoded": False,
    }
    cookies = [part for name, value in request.headers if name == b"cookie" for part in _cookies(value)]
    if cookies:
        fields["cookies"] = cookies
    if request.query:
        fields["queryStringParameters"] = _parameters(request.query)
    if body:
        text = _text(body, headers.get("content-type", ""))
        fields["isBase64Encoded"] = text is None
        fields["body"] = text if text is not None else base64.b64encode(body).decode()
    return msgspec.json.encode(fields)


def event_headers(request: UrlRequest) -> dict[str, str]:
    """The headers, those of a name that is repeated joined by commas; and how the client came here, unless a proxy says."""
    values: dict[str, list[str]] = {}
    for name, value in _passed_on(request):
        values.setdefault(name, []).append(value)
    headers = {name: (";" if name == "cookie" else ",").join(each) for name, each in values.items()}
    headers.setdefault("x-forwarded-for", request.source_ip)
    headers.setdefault("x-forwarded-proto", "http")
    headers.setdefault("x-forwarded-port", str(request.server_port))
    return headers


def _passed_on(request: UrlRequest) -> list[tuple[str, str]]:
    """The headers that are the function's business. A signature is not: it proves something to us."""
    dropped = set(HOP_BY_HOP)
    if request.access_key:
        dropped.add("authorization")
    named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers]
    for name, value in named:
        if name == "connection":
            dropped.update(option.strip().lower() for option in value.split(","))
    return [(name, value) for name, value in named if name not in dropped]


def _context(request: UrlRequest, user_agent: str) -> dict[str, Any]:
    context: dict[str, Any] = {
        "accountId": ACCOUNT if request.access_key else "anonymous",
        "apiId": request.url_id,
        "domainName": request.domain,
        "domainPrefix": request.url_id,
        "http": {
            "method": request.method,
            "path": request.path,
            "protocol": f"HTTP/{request.version}",
            "sourceIp": request.source_ip,
            "userAgent": user_agent,
        },
        "requestId": request.request_id,
        "routeKey": _DEFAULT,
        "stage": _DEFAULT,
        "time": _clf_time(request.time_s),
        "timeEpoch": int(request.time_s * 1000),
    }
    if request.access_key:
        context["authentication"] = None
        context["authorizer"] = {
            "iam": {
                "accessKey": request.access_key,
                "accountId": ACCOUNT,
                "callerId": request.access_key,
                "cognitoIdentity": None,
                "principalOrgId": None,
                "userArn": f"arn:aws:iam::{ACCOUNT}:user/{request.access_key}",
                "userId": request.access_key,
            }
        }
    return context


def _clf_time(time_s: float) -> str:
    """As in the Common Log Format, whatever the locale: 12/Mar/2020:19:03:58 +0000."""
    now = time.gmtime(time_s)
    return f"{now.tm_mday:02}/{_MONTHS[now.tm_mon - 1]}/{now.tm_year}:{time.strftime('%H:%M:%S', now)} +0000"


def _cookies(value: bytes) -> list[str]:
    return [cookie for part in value.decode("latin-1").split(";") if (cookie := part.strip())]


def _parameters(query: str) -> dict[str, str]:
    parameters: dict[str, list[str]] = {}
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            parameters.setdefault(unquote_plus(name), []).append(unquote_plus(value))
    return {name: ",".join(values) for name, values in parameters.items()}


def _text(body: bytes, content_type: str) -> str | None:
    """The body, if it is text and is said to be."""
    kind = content_type.lower()
    if not any(text_type in kind for text_type in TEXT_TYPES):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
