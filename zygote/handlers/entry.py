"""The user's handler: found by its name, and which kind it is: a function, a web app, a program of its own, or a
WebAssembly module."""

from __future__ import annotations

import sys

from sockd_zygote.handlers.entry_module import load_file
from sockd_zygote.handlers.handler import Handler
from sockd_zygote.messages import errors
from sockd_zygote.messages.errors import HandlerNotFound

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any


WASM_HOST = "sockd_zygote.handlers.wasm.host"
"""The module that serves WebAssembly. It imports the runtime, which only such functions have."""


def open_handler(function: dict) -> Handler:
    """Load the entry point. Raises: HandlerNotFound; whatever its module raises."""
    if function.get("service"):
        from sockd_zygote.handlers.programs.service import Service

        return Service(function)
    if function.get("provided"):
        if "port" in (function.get("image") or ()):
            from sockd_zygote.handlers.programs.web_server import WebServer

            return WebServer(function)
        from sockd_zygote.handlers.programs.runtime_api import Program

        return Program(function)
    if function.get("wasm"):
        __import__(WASM_HOST)
        handler: Handler = sys.modules[WASM_HOST].WasmHandler(function)
        return handler
    target, app = load_target(function)
    if not app:
        return Handler(function, target)
    from sockd_zygote.handlers.app_kinds import open_app

    return open_app(target, app) or Handler(function, target)


def load_target(function: dict) -> tuple[Any, str]:
    """Load the entry module, and what serves its kind of handler.

    Returns: the object that the entry point names, and which kind of web app it may be; empty: none.
    Raises: HandlerNotFound; whatever the module raises."""
    if function["entry_file"]:
        load_file(function["handler"].partition(":")[0], function["code"], function["entry_file"])
    app = function.get("app", "")
    if not app:
        return load(function["handler"]), ""
    target = load_any(function["handler"])
    code = getattr(target, "__code__", None)
    if app == "maybe" and code is not None and is_plain(code) and not hasattr(target, "__wrapped__"):
        return target, ""
    return target, app


def is_plain(code: Any) -> bool:
    """Whether a function's arguments are an event's and not a web app's."""
    return code.co_argcount < 3 and not code.co_flags & 0x04 and "start_response" not in code.co_varnames  # *args


def load(entry: str) -> Any:
    """The object behind "module:attribute"; the module may be "package.module"."""
    name, _, attribute = entry.partition(":")
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise HandlerNotFound(f"no module {name!r} in the function's code; {errors.set_handler()}") from None
    try:
        return getattr(sys.modules[name], attribute)
    except AttributeError:
        raise HandlerNotFound(f"module {name!r} has no {attribute!r}; {errors.set_handler()}") from None


def load_any(entry: str) -> Any:
    """`load`; instead of OpenLambda's `f`, and of `handler` in handler.py and main.py, an `app` of the same module."""
    try:
        return load(entry)
    except HandlerNotFound:
        name, _, attribute = entry.partition(":")
        app = getattr(sys.modules.get(name), "app", None)
        if app is None or (attribute != "f" and entry not in ("handler:handler", "main:handler")):
            raise
        return app
