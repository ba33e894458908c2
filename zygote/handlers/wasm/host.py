"""A WebAssembly module as a function: each request gets a fresh instance, which has the event, its log, and nothing of other
requests.

Owns the loaded module and the deadline of what runs. The wall around the function is its sandbox; that of the runtime is between
requests. Of the host a guest sees the function's variables, its code (read-only) and /tmp. Before the first request an instance
is made, but none runs: that would start threads, and a template is to be forked.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

import wasmtime
from wasmtime import _bindings, component

from sockd_zygote.handlers.handler import Context, Handler, shared_context
from sockd_zygote.handlers.wasm import guests, runtime
from sockd_zygote.handlers.wasm.deadline import Deadline
from sockd_zygote.messages import errors

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HOST_MB = 32
"""Memory of a sandbox that its guest cannot have: a start without a Zygote takes 20 MB. Of less than twice as much, half is
the guest's."""
AHEAD_NS = 100_000_000
"""So long before its deadline a guest is interrupted, so that its sandbox can say so; of a short one, a twentieth."""
PER_REQUEST = ("SOCKD_REQUEST_ID", "SOCKD_DEADLINE_MS", "_X_AMZN_TRACE_ID")
"""Variables that a guest has besides the function's."""
INTERRUPTED = "wasm trap: interrupt"
TIMED_OUT = "Sandbox.Timedout"
BACKTRACE, CAUSE = "wasm backtrace:\n", "Caused by:\n"


class WasmHandler(Handler):
    """A handler that is a module."""

    def __init__(self, function: dict) -> None:
        """Load the compiled module, and make an instance once.

        Raises: errors.ReportedError: it cannot be loaded, or is refused."""
        self._shared = shared_context(function)
        self._name, self._code = function["handler"], function["code"]
        self._max_bytes = function["max_answer_bytes"]
        memory_mb = function["memory_mb"]
        self._memory_bytes = max(memory_mb - HOST_MB, memory_mb // 2) << 20
        self._engine = runtime.machine()
        self._deadline = Deadline(self._engine.increment_epoch)
        own = {name: value for name, value in os.environ.items() if name not in PER_REQUEST}
        self._variables = Variables({**own, **dict.fromkeys(PER_REQUEST, "")})
        with open(f"{self._code}/{self._name}", "rb") as file:
            kind = component.Component if runtime.is_component(file.read(8)) else wasmtime.Module
        try:
            loaded = kind.deserialize_file(self._engine, f"{self._code}/{function['wasm']}")
            self._guest = guests.guest_of(self._engine, loaded)
            self._guest.instance(self._store(wasmtime.WasiConfig()))
        except guests.Unfit as error:
            raise errors.ReportedError("Runtime.InvalidModule", f"{self._name}: {error}", []) from None
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            raise self._error(str(error)) from None

    def call(self, event: bytes, request: bytes, deadline_ns: int, metadata: dict | None = None) -> bytes:
        """Serve one event with an instance of its own.

        Raises: errors.ReportedError: it trapped, exited with a status, returned an error, or was interrupted at its deadline."""
        context = Context(self._shared, request, deadline_ns)
        answer = Output(self._max_bytes, self._engine.increment_epoch)
        wasi = self._wasi(context)
        if self._guest.is_command:
            set_stdin(wasi, event)
            wasi.stdout_custom = answer.write
        else:
            wasi.inherit_stdout()
        store = self._store(wasi)
        left_ns = context.get_remaining_time_in_millis() * 1_000_000
        self._deadline.set(deadline_ns - min(AHEAD_NS, left_ns // 20))
        try:
            text = self._guest.instance(store)(event)
        except wasmtime.ExitTrap as error:
            if error.code:
                raise errors.ReportedError("Runtime.ExitError", f"exit status {error.code}", []) from None
            text = ""
        except guests.Failed as error:
            raise errors.ReportedError("HandlerError", str(error), []) from None
        except UnicodeDecodeError:
            raise errors.InvalidEvent("the event is not UTF-8, and handle takes a string") from None
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            if not answer.is_over:
                raise self._error(str(error)) from None
        finally:
            self._deadline.clear()
        return b"".join(answer.pieces) if self._guest.is_command else text.encode()

    def _store(self, wasi: wasmtime.WasiConfig) -> wasmtime.Store:
        store = wasmtime.Store(self._engine)
        store.set_limits(memory_size=self._memory_bytes)
        store.set_epoch_deadline(1)
        store.set_wasi(wasi)
        return store

    def _wasi(self, context: Context) -> wasmtime.WasiConfig:
        """Return what one guest sees of the host."""
        wasi = wasmtime.WasiConfig()
        wasi.argv = [self._name]
        until_ms = time.time_ns() // 1_000_000 + context.get_remaining_time_in_millis()
        self._variables.give(wasi, context.aws_request_id, str(until_ms), os.environ.get("_X_AMZN_TRACE_ID", ""))
        wasi.inherit_stderr()
        wasi.preopen_dir(self._code, self._code, False)
        wasi.preopen_dir("/tmp", "/tmp", True)
        return wasi

    def _error(self, words: str) -> errors.ReportedError:
        """Return the error for what the runtime says of a guest that it ended."""
        _, _, trace = words.partition(BACKTRACE)
        trace, _, cause = trace.partition(CAUSE)
        message = " ".join((cause or words).split())
        stack = [f"  {line.strip()}\n" for line in trace.splitlines() if line.strip()]
        if INTERRUPTED in message:
            print(f"{self._name} was interrupted at its deadline, in:\n{''.join(stack)}", end="", file=sys.stderr)
            return errors.ReportedError(TIMED_OUT, message, stack)
        return errors.ReportedError("Runtime.WasmTrap", message.removeprefix("wasm trap: "), stack)


class Output:
    """What a command has written, up to one byte over what may be answered; that ends the command."""

    def __init__(self, max_bytes: int, stop: Callable[[], object]) -> None:
        self.pieces: list[bytes] = []
        self._left = max_bytes + 1
        self._stop = stop

    @property
    def is_over(self) -> bool:
        """Whether it is longer than an answer may be."""
        return self._left <= 0

    def write(self, piece: bytes) -> None:
        if not self.is_over:
            self.pieces.append(piece[: self._left])
            self._left -= len(piece)
            if self.is_over:
                self._stop()


class Variables:
    """Environment variables as arrays of C, made once: to make them takes longer than a small guest runs."""

    def __init__(self, variables: dict[str, str]) -> None:
        """Args: variables: those of PER_REQUEST last."""
        self._count = len(variables)
        self._names = (ctypes.c_char_p * self._count)(*map(os.fsencode, variables))
        self._values = (ctypes.c_char_p * self._count)(*map(os.fsencode, variables.values()))

    def give(self, wasi: wasmtime.WasiConfig, *per_request: str) -> None:
        """Give a guest all of them."""
        for place, value in enumerate(per_request, self._count - len(PER_REQUEST)):
            self._values[place] = os.fsencode(value)
        pointers = (
            ctypes.cast(each, ctypes.POINTER(ctypes.POINTER(ctypes.c_char))) for each in (self._names, self._values)
        )
        _bindings.wasi_config_set_env(wasi.ptr(), self._count, *pointers)


def set_stdin(wasi: wasmtime.WasiConfig, data: bytes) -> None:
    """Have a guest read these bytes; the class has no property for it."""
    content: Any = _bindings.wasm_byte_vec_t()
    buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    _bindings.wasm_byte_vec_new(ctypes.byref(content), len(data), buffer)
    _bindings.wasi_config_set_stdin_bytes(wasi.ptr(), ctypes.byref(content))
