"""What a request brings with its event: a length and JSON in INVOKE, read only by those that have any.

http             the request as it came, for a web app (`sockd.base.invoke_request`); the event is its body then
client_context   AWS's ClientContext, for `context.client_context`
arn              for `context.invoked_function_arn`
deployer         for `context._from_deployer`
trace            for the environment variable _X_AMZN_TRACE_ID
traceparent      the same in W3C's words, for TRACEPARENT, and tracestate for TRACESTATE, if there is any
"""

from __future__ import annotations

import os

from sockd_zygote import _native, protocol
from sockd_zygote.messages.event_json import scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLES = (("trace", b"_X_AMZN_TRACE_ID"), ("traceparent", b"TRACEPARENT"), ("tracestate", b"TRACESTATE"))
"""The details, and the variable that has each. The place of each in the environment that C code sees is its place here."""
known: dict[bytes, bytes] = os.environb._data  # type: ignore[attr-defined]  # its own methods call setenv(3), which keeps all values


def split(body: bytes) -> tuple[bytes, dict]:
    """The event and the details in the body of an INVOKE."""
    start = protocol.INVOCATION.size
    end = start + int.from_bytes(body[start - len(protocol.NO_DETAILS) : start], "little")
    return body[end:], scan(str(body[start:end], "utf-8"), 0)[0]


class Trace:
    """The trace that a request is a part of, in the environment for the length of that request."""

    def __init__(self, values: dict) -> None:
        self._values = values

    def __enter__(self) -> None:
        for place, (key, name) in enumerate(VARIABLES):
            value = self._values.get(key)
            if value:
                known[name] = value.encode()
                _native.set_request_variable(place, name + b"=" + known[name])

    def __exit__(self, *exc_info: object) -> None:
        for place, (_, name) in enumerate(VARIABLES):
            if known.pop(name, None) is not None:
                _native.set_request_variable(place, name)


class Client:
    """`context.client_context.client`, with AWS's names."""

    def __init__(self, values: dict) -> None:
        self.installation_id = values.get("installation_id")
        self.app_title = values.get("app_title")
        self.app_version_name = values.get("app_version_name")
        self.app_version_code = values.get("app_version_code")
        self.app_package_name = values.get("app_package_name")


class ClientContext:
    """`context.client_context`, as AWS's runtime makes it: names that it does not know are in `custom` or nowhere."""

    def __init__(self, values: dict) -> None:
        self.custom = values.get("custom")
        self.env = values.get("env")
        client = values.get("client")
        self.client = Client(client) if isinstance(client, dict) else client


def client_context(values: Any) -> Any:
    """The object for what a client sent, which need not be what AWS's SDKs for phones send."""
    return ClientContext(values) if isinstance(values, dict) else values
