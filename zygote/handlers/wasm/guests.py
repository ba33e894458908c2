"""The three kinds of guests: what is a function's module or component, and one request to a fresh instance of it.

    command             a module with `_start` (WASI p1)          the event is its standard input, its output the answer
    command component   a component with wasi:cli/run (WASI p2)   likewise
    handler component   handle: func(event: string) -> result<string, string>

Owns the linker and what it resolved. An instance is made for each request and belongs to the request's store.
"""

from __future__ import annotations

import wasmtime
from wasmtime import component

from sockd_zygote.handlers.wasm import imports

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

START = "_start"
BOOT = "boot"
"""What an initscript exports."""
HANDLE = "handle"
RUN = "wasi:cli/run@0.2."
HTTP = "wasi:http/"
PROVIDED = tuple(f"wasi:{each}/" for each in ("cli", "clocks", "filesystem", "io", "random", "sockets"))
"""How the names of the interfaces begin that a component may import."""
SIGNATURE = "handle: func(event: string) -> result<string, string>"


class Unfit(Exception):
    """A module that can serve no request; the text says why."""


class Failed(Exception):
    """A guest's own error. Args: what it said."""


def guest_of(engine: wasmtime.Engine, loaded: wasmtime.Module | component.Component) -> Guest:
    """Return the guest that a module or component is. Raises: Unfit."""
    if isinstance(loaded, wasmtime.Module):
        return Command(engine, loaded)
    exports = loaded.type.exports(engine)
    if any(name.startswith(HTTP) for name in exports):
        raise Unfit('a component for wasi:http, which serves as kind = "service" ([service] port = 8080 in sockd.toml)')
    unknown = [name for name in loaded.type.imports(engine) if not name.startswith(PROVIDED)]
    if unknown:
        raise Unfit(f"unknown import {unknown[0]}; known are the interfaces of WASI 0.2 ({', '.join(PROVIDED)})")
    if HANDLE in exports:
        return HandlerComponent(engine, loaded)
    if run := next((name for name in exports if name.startswith(RUN)), ""):
        return CommandComponent(engine, loaded, run)
    raise Unfit(f"the component exports neither {SIGNATURE!r} nor wasi:cli/run")


class Command:
    """A WASI p1 command."""

    is_command = True

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        """Raises: Unfit."""
        kinds = {export.name: export.type for export in module.exports}
        start = kinds.get(START)
        if not isinstance(start, wasmtime.FuncType) or start.params or start.results:
            if BOOT in kinds:
                raise Unfit("an initscript, which goes with a function: sockd deploy FILE --name FUNCTION")
            raise Unfit(f"no function () -> () is exported as {START!r}: it must be a WASI command, and not a library")
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        imports.define(linker)
        try:
            self._pre = linker.instantiate_pre(module)
        except wasmtime.WasmtimeError as error:
            raise Unfit(str(error)) from None

    def instance(self, store: wasmtime.Store) -> Callable[[bytes], str]:
        """Return what serves one event. Raises: wasmtime.WasmtimeError, wasmtime.Trap."""
        start = self._pre.instantiate(store).exports(store)[START]
        assert isinstance(start, wasmtime.Func)

        def serve(event: bytes) -> str:
            start(store)
            return ""

        return serve


class CommandComponent:
    """A WASI p2 command."""

    is_command = True

    def __init__(self, engine: wasmtime.Engine, loaded: component.Component, run: str) -> None:
        """Args: run: the name of the exported interface."""
        self._component = loaded
        self._linker = linker_of(engine)
        interface = loaded.get_export_index(run)
        index = loaded.get_export_index("run", interface)
        if index is None:
            raise Unfit(f"{run} has no run")
        self._run = index

    def instance(self, store: wasmtime.Store) -> Callable[[bytes], str]:
        """As `Command`."""
        run = self._linker.instantiate(store, self._component).get_func(store, self._run)
        assert run is not None

        def serve(event: bytes) -> str:
            if run(store).tag == "err":
                raise Failed("wasi:cli/run returned an error")
            return ""

        return serve


class HandlerComponent:
    """A component that exports `handle`."""

    is_command = False

    def __init__(self, engine: wasmtime.Engine, loaded: component.Component) -> None:
        """Raises: Unfit."""
        kind = loaded.type.exports(engine)[HANDLE].ty
        if not is_handle(kind):
            raise Unfit(f"{HANDLE!r} is exported, but is not {SIGNATURE!r}")
        self._component = loaded
        self._linker = linker_of(engine)
        index = loaded.get_export_index(HANDLE)
        assert index is not None
        self._handle = index

    def instance(self, store: wasmtime.Store) -> Callable[[bytes], str]:
        """As `Command`. What serves raises Failed for an error that the component returns, and UnicodeDecodeError."""
        handle = self._linker.instantiate(store, self._component).get_func(store, self._handle)
        assert handle is not None

        def serve(event: bytes) -> str:
            result = handle(store, event.decode())
            if result.tag == "err":
                raise Failed(result.payload)
            return str(result.payload)

        return serve


Guest = Command | CommandComponent | HandlerComponent


def linker_of(engine: wasmtime.Engine) -> component.Linker:
    """Return a linker with the interfaces of WASI 0.2."""
    linker = component.Linker(engine)
    linker.add_wasip2()
    return linker


def is_handle(kind: Any) -> bool:
    """Whether the type of an export is that of `handle`."""
    text = component.String
    if not isinstance(kind, component.FuncType) or [type(each) for _, each in kind.params] != [text]:
        return False
    result = kind.result
    return isinstance(result, component.ResultType) and isinstance(result.ok, text) and isinstance(result.err, text)
