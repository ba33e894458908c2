"""How guests call us and we call them: through wasmtime's C interface, with values as they lie in memory.

The library's own way makes an object of each value, and hands exceptions around in a global of its module, so that with
several threads a guest may be unwound by another's (hazard 1). It takes 0.05 ms a call where a cold start finds no cache warm.
Owns the callbacks. Knows nothing of what they do.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import wasmtime
from wasmtime import _bindings as c

from sockd_initscripts.engine import abi, modules

_SLOT_BYTES = ctypes.sizeof(c.wasmtime_val_raw_t)
_ARGUMENTS = {"i": f"i{_SLOT_BYTES - 4}x", "I": f"q{_SLOT_BYTES - 8}x"}
_RESULTS: dict[str, Any] = {"i": ctypes.c_int32, "I": ctypes.c_int64}
_Callback = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
NO_FINALIZER = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))
_UNWOUND = b"unwound by a host function"
_callbacks: list[Any] = []
"""For as long as the process lives: a linker has no end before it."""

HostFunction = Callable[..., int | None]
"""Takes the arguments; None unwinds the guest, also where nothing is returned otherwise."""


def define(linker: wasmtime.Linker, name: str, function: HostFunction) -> None:
    """Let guests import one of the ABI's functions. It must not raise."""
    callback = _callback(function, *abi.FUNCTIONS[name])
    _callbacks.append(callback)
    kind = modules.signature(name)
    module, encoded = abi.IMPORT_MODULE.encode(), name.encode()
    # SAFETY: the callback reads and writes as many values of those kinds as the signature says, which wasmtime holds
    # each import against; it is never freed.
    error = c.wasmtime_linker_define_func_unchecked(
        *(linker.ptr(), ctypes.create_string_buffer(module), len(module), ctypes.create_string_buffer(encoded)),
        *(len(encoded), kind.ptr(), ctypes.cast(callback, c.wasmtime_func_unchecked_callback_t), None, NO_FINALIZER),
    )
    if error:
        raise wasmtime.WasmtimeError._from_ptr(error)


def _callback(function: HostFunction, parameters: str, results: str) -> Any:
    layout = struct.Struct("<" + "".join(_ARGUMENTS[kind] for kind in parameters))
    unpack, slots = layout.unpack_from, (ctypes.c_char * layout.size).from_address
    result_at = _RESULTS[results].from_address if results else None

    def call(_data: Any, _caller: Any, values: int, _count: int) -> int:
        result = function(*unpack(slots(values)))
        if result is None:
            return ctypes.cast(c.wasmtime_trap_new(_UNWOUND, len(_UNWOUND)), ctypes.c_void_p).value or 0
        if result_at is not None:
            result_at(values).value = result
        return 0

    return _Callback(call)


class Entry:
    """A guest's entry, of type () -> (), which its module was checked for before it was compiled."""

    def __init__(self, store: wasmtime.Store, function: wasmtime.Func) -> None:
        self._store = store
        self._function = function
        self._values = (c.wasmtime_val_raw_t * 1)()

    def __call__(self) -> None:
        """Raises wasmtime.WasmtimeError or Trap, whatever unwound it."""
        trap = ctypes.POINTER(c.wasm_trap_t)()
        # SAFETY: no parameter and no result; the store lives as long as this.
        error = c.wasmtime_func_call_unchecked(
            self._store._context(), ctypes.byref(self._function._func), self._values, 1, ctypes.byref(trap)
        )
        if error:
            raise wasmtime.WasmtimeError._from_ptr(error)
        if trap:
            raise wasmtime.Trap._from_ptr(trap)
