"""Options in the headers of a request to `/run`.

    X-Amz-Invocation-Type: Event   run it asynchronously; 202 when it is stored
    Idempotency-Key: ...           run it once within some minutes
    X-Sockd-Fresh: 1               run it in a new sandbox even if one is idle
    X-Sockd-If-Code: ...           run it only if this code is deployed (`sockd.base.call_signature`)
    X-Sockd-Signature: ...         the deployer calls; the answer is signed, too, and the caller's nonce is the request's id
                                   (`sockd.http.run.signed_calls`)

Owns nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from sockd.base import call_signature
from sockd.base.errors import BadRequest
from sockd.base.invoke_request import InvokeRequest
from sockd.http.plain_calls import FRESH, INVOCATION_TYPE, accepted, is_fresh
from sockd.http.replays import Replays
from sockd.http.server.messages.answers import Answer
from sockd.http.worker import Events

IDEMPOTENCY_KEY = b"idempotency-key"
IF_CODE = call_signature.IF_CODE.encode()
SIGNATURE = call_signature.SIGNATURE.encode()
HEADERS = frozenset({INVOCATION_TYPE, IDEMPOTENCY_KEY, FRESH, IF_CODE, SIGNATURE})
_KEY_CHARS = 255
_TAGS = re.compile(rb"[0-9a-f]{64}(?:,[0-9a-f]{64}){0,3}")


async def run_as_asked(
    request: InvokeRequest,
    asked: Mapping[bytes, bytes],
    *,
    events: Events,
    replays: Replays,
    run: Callable[[], Awaitable[Answer]],
    incarnation: Callable[[str, str], str],
) -> Answer:
    """An answer as such a header wants it.

    Args: run: invokes the function now; incarnation: `Calls.incarnation`. Raises: SockdError."""
    request.fresh = is_fresh(asked)
    request.expected = expected_code(asked)
    key = asked.get(IDEMPOTENCY_KEY, b"").decode("latin-1")
    if len(key) > _KEY_CHARS:
        raise BadRequest(f"an Idempotency-Key has at most {_KEY_CHARS} characters")
    kind = asked.get(INVOCATION_TYPE, b"RequestResponse")
    if kind == b"Event":
        return await accepted(events, request, source="run", retry_key=key)
    if kind != b"RequestResponse":
        raise BadRequest("X-Amz-Invocation-Type is RequestResponse or Event")
    if not key:
        return await run()
    # In whole, as a stream could not be repeated.
    request.sink = None
    about = ("run", request.name, incarnation(request.name, request.qualifier), request.qualifier, key)
    return await replays.once(about, request.payload, run, strict=True, gone=request.gone or (lambda: False))


def ours(asked: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the headers that are addressed to the worker when the function is a web app; all others are the app's own."""
    return {name: value for name, value in asked.items() if name in (FRESH, IF_CODE)}


def expected_code(asked: Mapping[bytes, bytes]) -> list[str] | None:
    """The digests and source tags of the code that may run; None: whatever is deployed. Raises: BadRequest."""
    value = asked.get(IF_CODE)
    if value is None:
        return None
    if not _TAGS.fullmatch(value):
        raise BadRequest("X-Sockd-If-Code is 1 to 4 digests of 64 hex digits, separated by commas")
    return value.decode().split(",")
