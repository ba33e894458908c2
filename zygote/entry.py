"""The user's handler: found by name, called the way its signature asks for, its answer made into JSON.

Conventions (research of what AWS, SeBS and OpenLambda users write): two positional parameters get (event, context), one
gets (event); `async def` is awaited on one event loop that lives as long as the sandbox; an iterator that is returned is
the answer's pieces. A web app is another kind of handler (`zygote.apps`).
"""

from __future__ import annotations

import json
import sys
import time

from zygote.entry_module import load_file
from zygote.errors import HandlerNotFound, InvalidEvent, MarshalError

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

decode = json.JSONDecoder().decode
# What is below json's own functions, made once: they match patterns and make an encoder for each call.
scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
markers: dict[int, object] = {}
encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    markers, json.JSONEncoder().default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
)
"""(answer, 0) -> strings; `markers` are the containers that it is in. No NaN."""


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

    def tell(self, told: dict) -> None:
        """Add what came with this request (`zygote.details`)."""
        from zygote import details

        if told.get("client_context") is not None:
            self.client_context = details.client_context(told["client_context"])
        if told.get("deployer") is True:
            self._from_deployer = True
        self.invoked_function_arn = told.get("arn", self.invoked_function_arn)

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


def open_handler(function: dict) -> Handler:
    """Load the entry point. Raises: HandlerNotFound; whatever its module raises."""
    if function.get("provided"):
        from zygote.runtime_api import Program

        return Program(function)
    if function["entry_file"]:
        load_file(function["handler"].partition(":")[0], function["code"], function["entry_file"])
    app = function.get("app", "")
    if not app:
        return Handler(function, load(function["handler"]))
    target = load_any(function["handler"])
    code = getattr(target, "__code__", None)
    if app == "maybe" and code is not None and is_plain(code) and not hasattr(target, "__wrapped__"):
        return Handler(function, target)
    from zygote.apps import open_app

    return open_app(target, app) or Handler(function, target)


def is_plain(code: Any) -> bool:
    """Whether a function's arguments are an event's and not a web app's."""
    return code.co_argcount < 3 and not code.co_flags & 0x04 and "start_response" not in code.co_varnames  # *args


class Handler:
    """A function that takes events. `call` gives its answer's JSON, or an answer that is to be poured into an Outlet."""

    kind = b""
    """What READY says of it."""

    def __init__(self, function: dict, target: Any) -> None:
        self._callable = target
        count, is_async = signature(self._callable, function["handler"])
        self._context = shared_context(function) if count > 1 else None
        self._run = Runner().run if is_async else None

    def call(self, event: bytes, request: bytes, deadline_ns: int, told: dict | None = None) -> Any:
        """One request.

        Args: told: what came beside the event, if anything did.
        Returns: bytes, or something with `pour`. Raises: whatever the function raises; InvalidEvent; MarshalError."""
        if self._context is None:
            answer = self._callable(parse_event(event))
        else:
            context = Context(self._context, request, deadline_ns)
            if told is not None:
                context.tell(told)
            answer = self._callable(parse_event(event), context)
        if self._run is not None and hasattr(answer, "__await__"):
            answer = self._run(answer)
        try:
            return encode_answer(answer)
        except MarshalError:
            if not hasattr(type(answer), "__next__") and not hasattr(type(answer), "__anext__"):
                raise
        from zygote.pieces import Pieces

        if self._run is None and hasattr(type(answer), "__anext__"):
            self._run = Runner().run
        return Pieces(answer, self._run)

    def close(self) -> None:
        """Nobody will call it any more."""


class Runner:
    """One asyncio event loop for all requests of this sandbox, made when the first needs it: the import takes 50 ms."""

    def __init__(self) -> None:
        import asyncio

        self.run = asyncio.Runner().run


def parse_event(event: bytes) -> object:
    try:
        text = str(event, "utf-8")
        try:
            value, end = scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, ValueError):
            pass
        return decode(text)  # there is space around it, or it is wrong: this one says where
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"Could not parse request body into json: {error}") from None


def encode_answer(answer: object) -> bytes:
    try:
        text: str = "".join(encode(answer, 0))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        markers.clear()  # it was left in the middle of a container
        if type(error) is TypeError and "decimal" in sys.modules:
            from zygote import decimals

            with_decimals = decimals.encode(answer)
            if with_decimals is not None:
                return with_decimals
        raise MarshalError(f"Unable to marshal response: {error}") from None


def load(entry: str) -> Any:
    """The object behind "module:attribute"; the module may be "package.module"."""
    name, _, attribute = entry.partition(":")
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise HandlerNotFound(f"no module {name!r} in the function's code; set handler in sockd.toml") from None
    try:
        return getattr(sys.modules[name], attribute)
    except AttributeError:
        raise HandlerNotFound(f"module {name!r} has no {attribute!r}; set handler in sockd.toml") from None


def load_any(entry: str) -> Any:
    """`load`, but that OpenLambda's f may be an app instead (its convention for one file)."""
    try:
        return load(entry)
    except HandlerNotFound:
        name, _, attribute = entry.partition(":")
        app = getattr(sys.modules.get(name), "app", None)
        if attribute != "f" or app is None:
            raise
        return app


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
