"""What a request brings beside its event: a length and JSON in INVOKE, read only by those that have any.

http             the request as it came, for a web app (`sockd.plain.invoke_request`); the event is its body then
client_context   AWS's ClientContext, for `context.client_context`
arn              for `context.invoked_function_arn`
deployer         for `context._from_deployer`
trace            for the environment variable _X_AMZN_TRACE_ID
traceparent      the same in W3C's words, for TRACEPARENT, and tracestate for TRACESTATE, if there is any
"""

from __future__ import annotations

import json
import os

from sockd_zygote import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLES = {"trace": "_X_AMZN_TRACE_ID", "traceparent": "TRACEPARENT", "tracestate": "TRACESTATE"}


def split(body: bytes) -> tuple[bytes, dict]:
    """The event and the details in the body of an INVOKE."""
    start = protocol.INVOCATION.size
    end = start + int.from_bytes(body[start - len(protocol.NO_DETAILS) : start], "little")
    return body[end:], json.loads(body[start:end])


class Trace:
    """The trace that a request is a part of, in the environment for the length of that request."""

    def __init__(self, told: dict) -> None:
        self._variables = {name: told[key] for key, name in VARIABLES.items() if told.get(key)}

    def __enter__(self) -> None:
        os.environ.update(self._variables)

    def __exit__(self, *exc_info: object) -> None:
        for name in self._variables:
            os.environ.pop(name, None)


class Client:
    """`context.client_context.client`, with AWS's names."""

    def __init__(self, told: dict) -> None:
        self.installation_id = told.get("installation_id")
        self.app_title = told.get("app_title")
        self.app_version_name = told.get("app_version_name")
        self.app_version_code = told.get("app_version_code")
        self.app_package_name = told.get("app_package_name")


class ClientContext:
    """`context.client_context`, as AWS's runtime makes it: names that it does not know are in `custom` or nowhere."""

    def __init__(self, told: dict) -> None:
        self.custom = told.get("custom")
        self.env = told.get("env")
        client = told.get("client")
        self.client = Client(client) if isinstance(client, dict) else client


def client_context(told: Any) -> Any:
    """The object for what a client sent, which need not be what AWS's SDKs for phones send."""
    return ClientContext(told) if isinstance(told, dict) else told
