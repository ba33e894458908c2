"""A function that takes events: called the way its signature asks for, its answer made into JSON.

Conventions (research of what AWS, SeBS and OpenLambda users write): two positional parameters get (event, context), one
gets (event); `async def` is awaited on one event loop that lives as long as the sandbox; an iterator that is returned is
the answer's pieces (`sockd_zygote.messages.pieces`), and bytes are the whole answer as they are.
"""

from __future__ import annotations

import time

from sockd_zygote.messages import details
from sockd_zygote.messages.errors import HandlerNotFound, MarshalError
from sockd_zygote.messages.event_json import encode_answer, parse_event
from sockd_zygote.messages.pieces import Pieces

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any


class Context:
    """What AWS Lambda hands a handler as its second argument, with the same attribute names and types."""

    identity = None
    client_context: Any = None
    _from_deployer = False
    """Whether the daemon has verified that the function's deployer signed this request."""
    invoked_function_arn: str

    def __init__(self, function: dict[str, str], request: bytes, deadline_ns: int) -> None:
        """Args: function: what is the same for every request (`shared_context`)."""
        digits = request.hex()  # str(uuid.UUID(bytes=request)), without importing uuid
        self.__dict__.update(function)
        self.aws_request_id = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
        self._deadline_ns = deadline_ns

    def tell(self, metadata: dict) -> None:
        """Add what came with this request (`sockd_zygote.messages.details`)."""
        if metadata.get("client_context") is not None:
            self.client_context = details.client_context(metadata["client_context"])
        if metadata.get("deployer") is True:
            self._from_deployer = True
        self.invoked_function_arn = metadata.get("arn", self.invoked_function_arn)

    def get_remaining_time_in_millis(self) -> int:
        return max(0, (self._deadline_ns - time.monotonic_ns()) // 1_000_000)


def shared_context(function: dict) -> dict[str, str]:
    """The attributes that every Context of a function has, from INIT."""
    name, version = function["name"], function["version"]
    return {
        "function_name": name,
        "function_version": version,
        "invoked_function_arn": f"arn:aws:lambda:local:000000000000:function:{name}",
        "memory_limit_in_mb": str(function["memory_mb"]),
        "log_group_name": f"/aws/lambda/{name}",
        "log_stream_name": version,
    }


class Handler:
    """A function that takes events. `call` gives its answer's JSON, or an answer that is to be poured into an Outlet."""

    kind = b""
    """What READY says of it."""
    has_ended = False
    """Whether it cannot answer a further request: the function's program has ended."""

    def __init__(self, function: dict, target: Any) -> None:
        self._callable = target
        count, is_async = signature(self._callable, function["handler"])
        self._context = shared_context(function) if count > 1 else None
        self._run = Runner().run if is_async else None

    def call(self, event: bytes, request: bytes, deadline_ns: int, metadata: dict | None = None) -> Any:
        """Handle one request.

        Args: metadata: what came with the event, if anything did.
        Returns: bytes, or something with `pour`. Raises: whatever the function raises; InvalidEvent; MarshalError."""
        if self._context is None:
            answer = self._callable(parse_event(event))
        else:
            context = Context(self._context, request, deadline_ns)
            if metadata is not None:
                context.tell(metadata)
            answer = self._callable(parse_event(event), context)
        if self._run is not None and hasattr(answer, "__await__"):
            answer = self._run(answer)
        if type(answer) is bytes:
            return Pieces((answer,), None)
        try:
            return encode_answer(answer)
        except MarshalError:
            if not hasattr(type(answer), "__next__") and not hasattr(type(answer), "__anext__"):
                raise
        if self._run is None and hasattr(type(answer), "__anext__"):
            self._run = Runner().run
        return Pieces(answer, self._run)

    def close(self) -> None:
        """End it: no request will come any more."""


class Runner:
    """One asyncio event loop for all requests of this sandbox, made when the first needs it: the import takes 50 ms."""

    def __init__(self) -> None:
        import asyncio

        self.run = asyncio.Runner().run


def signature(function: Any, entry: str) -> tuple[int, bool]:
    """(1 or 2 positional arguments, whether calling gives a coroutine). `inspect` only for what is not a plain function."""
    code = getattr(function, "__code__", None)
    # A bound method has the code of its function, self among the arguments.
    if code is None or hasattr(function, "__wrapped__") or hasattr(function, "__self__"):
        return inspect_signature(function, entry)
    takes = 2 if code.co_flags & 0x04 else code.co_argcount  # 0x04: has *args
    if takes < 1 or takes - len(function.__defaults__ or ()) > 2:
        raise HandlerNotFound(f"{entry} must take (event) or (event, context)")
    return min(takes, 2), bool(code.co_flags & 0x80)  # 0x80: coroutine


def inspect_signature(function: Any, entry: str) -> tuple[int, bool]:
    import inspect

    if not callable(function):
        raise HandlerNotFound(f"{entry} is not callable")
    inner = inspect.unwrap(function)  # what a decorator wraps may be async where the wrapper is not
    is_async = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)
    try:
        inspect.signature(function).bind(None, None)
        return 2, is_async
    except TypeError:
        return 1, is_async
    except ValueError:  # a builtin without a signature
        return 2, is_async
