"""HTTP requests as events of API Gateway, function URLs and ALBs: an event to its request, and an answer to the event's sender.

Pure; owns nothing.
"""

from __future__ import annotations

import base64
import json
from urllib.parse import urlencode

from sockd_zygote.messages import errors

TEXT = ("text/", "application/json", "application/javascript", "application/xml", "application/x-www-form-urlencoded")


def is_http(event: dict) -> bool:
    """Whether an event is an HTTP request, of one of the two formats."""
    context = event.get("requestContext")
    return isinstance(context, dict) and ("http" in context or "httpMethod" in event)


def of_event(event: dict) -> tuple[str, str, str, list[list[str]], bytes]:
    """Method, path, query, headers and body of an event's request. Raises: InvalidEvent."""
    try:
        body = event.get("body") or ""
        data = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
        if "httpMethod" in event:
            several = event.get("multiValueHeaders") or {
                name: [value] for name, value in (event.get("headers") or {}).items()
            }
            headers = [[name.lower(), value] for name, values in several.items() for value in values]
            values = event.get("multiValueQueryStringParameters") or event.get("queryStringParameters") or {}
            is_balancer = "elb" in event["requestContext"]  # an ALB does not decode what it passes on
            query = joined(values) if is_balancer else urlencode(values, doseq=True)
            return event["httpMethod"], event.get("path") or "/", query, headers, data
        headers = [[name.lower(), value] for name, value in (event.get("headers") or {}).items()]
        if event.get("cookies"):
            headers = [pair for pair in headers if pair[0] != "cookie"] + [["cookie", "; ".join(event["cookies"])]]
        http = event["requestContext"]["http"]
        return http["method"], event.get("rawPath") or "/", event.get("rawQueryString") or "", headers, data
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.InvalidEvent(f"the event's HTTP request cannot be read: {type(error).__name__}: {error}") from None


def joined(values: dict) -> str:
    """A query of parts that are encoded already."""
    pairs = ((name, each) for name, value in values.items() for each in (value if isinstance(value, list) else [value]))
    return "&".join(f"{name}={value}" for name, value in pairs)


def answer_of(event: dict, status: int, headers: list[tuple[str, str]], body: bytes) -> bytes:
    """An answer in the shape that the event's sender expects."""
    text = as_text(headers, body)
    answer: dict = {
        "statusCode": status,
        "body": text if text is not None else base64.b64encode(body).decode(),
        "isBase64Encoded": text is None,
    }
    if "httpMethod" in event:
        several: dict[str, list[str]] = {}
        for name, value in headers:
            several.setdefault(name.lower(), []).append(value)
        answer["multiValueHeaders"] = several
        answer["headers"] = {name: values[-1] for name, values in several.items()}
    else:
        answer["headers"] = {name.lower(): value for name, value in headers if name.lower() != "set-cookie"}
        answer["cookies"] = [value for name, value in headers if name.lower() == "set-cookie"]
    return json.dumps(answer).encode()


def as_text(headers: list[tuple[str, str]], body: bytes) -> str | None:
    """A body as text, if its headers say that it is some; None: it is sent in base64."""
    named = {name.lower(): value.lower() for name, value in headers}
    kind = named.get("content-type", "").partition(";")[0].strip()
    if named.get("content-encoding", "identity") != "identity":
        return None
    if kind and not kind.startswith(TEXT) and not kind.endswith(("+json", "+xml")):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def as_json(body: bytes) -> bytes:
    """What a server answered to an event that is no HTTP request: as it is if it is JSON, else as a string."""
    try:
        json.loads(body)
        return body
    except (ValueError, RecursionError):
        return json.dumps(body.decode(errors="replace")).encode()
