"""What a sandbox says of itself, read with suspicion: it comes from beside user code and may be anything.

Owns nothing. Shapes and types are checked, whether it is true cannot be: a lie harms the function that tells it.
"""

from __future__ import annotations

import json

from sockd.errors import FunctionFailed, InvalidEvent, ResponseTooLarge, SandboxFailed, SockdError
from zygote import protocol


def read_failure(body: bytes, kind: type[FunctionFailed]) -> SockdError:
    """FAILED's body as an error; it comes from user code, so whatever is not as it should be is shown as text."""
    try:
        failure = json.loads(body)
        error_type, message = str(failure["errorType"]), str(failure["errorMessage"])
        stack = [str(line) for line in failure["stackTrace"]]
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
        return [(str(key), str(module), float(seconds)) for key, module, seconds in json.loads(body)]
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise protocol.ProtocolError(f"MODULES is not a list of triples: {error}") from None
