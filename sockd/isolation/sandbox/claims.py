"""Parsing of a sandbox's reports, which user code can forge.

Owns nothing. Shapes and types are checked; false content affects only the function that sends it. Parsing runs on the event loop,
so the channel enforces the size limits of `protocol.sandbox_limits`.
"""

from __future__ import annotations

import json

import msgspec

from sockd.base.errors import FunctionFailed, InvalidEvent, ResponseTooLarge, SandboxFailed, SockdError
from sockd.base.untrusted import read_seconds, read_text
from sockd_zygote import protocol

LONGEST_TYPE = 200
"""Characters of an error's type, as the handler server cuts it: it is remembered for every invocation."""
_imports = msgspec.json.Decoder(list[tuple[str, str, float]])


def read_failure(body: bytes, kind: type[FunctionFailed]) -> SockdError:
    """FAILED's body, without its times, as an error; of user code, so what is not as it should be is shown as text."""
    try:
        failure = json.loads(body)
        error_type, message = read_text(failure["errorType"])[:LONGEST_TYPE], failure["errorMessage"]
        stack = list(failure["stackTrace"])
        if not isinstance(message, str) or not all(isinstance(line, str) for line in stack):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        return SandboxFailed(body.decode(errors="replace")[:1000])
    if error_type == "InvalidRequestContentException":
        return InvalidEvent(message)
    if error_type == "Function.ResponseSizeTooLarge":
        return ResponseTooLarge(error_type, message)
    return kind(error_type, message, stack)


def read_imports(body: bytes) -> list[tuple[str, str, float]]:
    """MODULES' body, checked: it comes from user code. Raises: ProtocolError."""
    try:
        entries = _imports.decode(body)
        if len(entries) > protocol.MODULES_MAX:
            raise protocol.ProtocolError(f"MODULES of {len(entries)} modules, limit {protocol.MODULES_MAX}")
        return [(key, module, read_seconds(spent)) for key, module, spent in entries]
    except (ValueError, RecursionError, OverflowError) as error:  # msgspec's errors are ValueErrors
        raise protocol.ProtocolError(f"MODULES is not a list of triples: {error}") from None


def read_times(body: bytes) -> tuple[int, int]:
    """Start and end of what a frame answers. Raises: ProtocolError."""
    if len(body) < protocol.TIMES.size:
        raise protocol.ProtocolError(f"a frame of {len(body)} bytes without its times")
    return protocol.TIMES.unpack_from(body)
