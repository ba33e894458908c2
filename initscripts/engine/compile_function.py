"""The compiler of functions: as `compile`, for a WASI command or a component, which its sandbox loads.

    python -m sockd_initscripts.engine.compile_function [LIMIT BYTES]

It refuses what the host in the sandbox would refuse, with the same code, so that a deploy says it.
"""

from __future__ import annotations

import sys

import wasmtime
from wasmtime import component

from sockd_initscripts.engine import compile as compiler
from sockd_initscripts.engine.modules import first_line
from sockd_initscripts.errors import BadModule
from sockd_zygote.handlers.wasm import guests, runtime


def compile_function(wasm: bytes, *, limit_bytes: int) -> bytes:
    """The content of the compiled file. Raises: BadModule, when it can never serve a request."""
    if len(wasm) > limit_bytes:
        raise BadModule(f"it has more than {limit_bytes} bytes")
    if not wasm.startswith(runtime.MAGIC):  # the library would take text, too
        raise BadModule("not a WebAssembly binary")
    engine = runtime.machine()
    kind = component.Component if runtime.is_component(wasm) else wasmtime.Module
    try:
        loaded = kind(engine, wasm)
        guests.guest_of(engine, loaded)
        return bytes(loaded.serialize())
    except wasmtime.WasmtimeError as error:
        raise BadModule(f"malformed: {first_line(error)}") from error
    except guests.Unfit as error:
        raise BadModule(first_line(error)) from error


if __name__ == "__main__":
    sys.exit(compiler.main(sys.argv[1:], compile_function))
