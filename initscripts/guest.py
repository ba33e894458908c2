"""A guest: one module's instance and its Store, made, run and gone again in one thread.

How it ended is read from the run's own state (`Verdict`), never from what was raised: wasmtime-py hands exceptions of host
functions around in a global of its module, so with several threads a guest may be unwound by another's (hazard 1).

A guest that computes is stopped by the machine's epoch: whoever stops one marks its verdict and raises the epoch, at which
every running guest asks, in its own thread, whether it is meant. There is no ticker. The library has no name for that
question, so it is asked through its C interface.
"""

from __future__ import annotations

import ctypes
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import wasmtime
from wasmtime import _bindings as c

from initscripts import abi, modules
from initscripts.calls import Calls
from initscripts.errors import BadModule, CallFailed, GuestStopped
from initscripts.guest_memory import GuestMemory
from initscripts.limits import Budget
from initscripts.modules import LoadedModule, ModuleFile
from initscripts.report import Outcome

TABLE_ELEMENTS = 100_000
_EpochCallback = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.POINTER(c.wasmtime_context_t),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(c.wasmtime_update_deadline_kind_t),
)
_NO_FINALIZER = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))
_CONTINUE = 0
"""WASMTIME_UPDATE_DEADLINE_CONTINUE"""

_this_thread = threading.local()


class Verdict:
    """How a run's guest ends: set once, before anything is raised or interrupted; the first one counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcome: Outcome | None = None
        self.status = 0
        self.message = ""

    def set(self, outcome: Outcome, status: int = 0, message: str = "") -> bool:
        """Whether this is the first."""
        with self._lock:
            if self.outcome is not None:
                return False
            self.status, self.message = status, message
            self.outcome = outcome
            return True


class Machine:
    """What all guests share: wasmtime's engine and the linked host functions."""

    def __init__(self) -> None:
        self.engine = modules.machine()
        self.linker = wasmtime.Linker(self.engine)
        for name in abi.FUNCTIONS:
            self.linker.define_func(abi.IMPORT_MODULE, name, modules.signature(name), _host_function(name))

    def interrupt(self) -> None:
        """Have every guest that computes look at its verdict now. From any thread."""
        self.engine.increment_epoch()


class Guest:
    """One guest; `run` is called in the thread that it is to have."""

    def __init__(self, machine: Machine, module: ModuleFile, budget: Budget, calls: Calls, verdict: Verdict) -> None:
        self._machine = machine
        self._module = module
        self._budget = budget
        self._calls = calls
        self.verdict = verdict
        self.started_ns = 0
        self.ended_ns = 0

    def run(self) -> None:
        """Load, instantiate, enter, and be over, with a verdict. Raises nothing."""
        _this_thread.guest = self
        try:
            loaded = self._module.load(self._machine.linker)
            if loaded.memory_bytes > self._budget.memory_bytes:
                self.verdict.set("memory", message=f"the module begins with {loaded.memory_bytes} bytes of memory")
            else:
                self._enter(loaded)
        except BadModule as error:
            self.verdict.set("bad_module", message=error.reason)
        except Exception as error:
            self.verdict.set("trap", message=f"engine: {modules.first_line(error)}")
        finally:
            self._calls.use_memory(None)
            _this_thread.guest = None
            self.ended_ns = time.monotonic_ns()

    @property
    def calls(self) -> Calls:
        return self._calls

    def _enter(self, loaded: LoadedModule) -> None:
        with wasmtime.Store(self._machine.engine) as store:
            store.set_limits(
                memory_size=self._budget.memory_bytes, table_elements=TABLE_ELEMENTS, instances=1, tables=16, memories=1
            )
            # SAFETY: the signature is the binding's own; the function lives as long as this module, longer than any store.
            c.wasmtime_store_epoch_deadline_callback(store.ptr(), _AT_EPOCH, None, _NO_FINALIZER)
            store.set_epoch_deadline(1)
            # After the deadline is set: who has stopped the run since raises the epoch once more.
            if self.verdict.outcome is not None:
                return
            memory: GuestMemory | None = None
            self.started_ns = time.monotonic_ns()
            try:
                exports = loaded.pre.instantiate(store).exports(store)
                memory = GuestMemory(store, exports[abi.EXPORTED_MEMORY])  # type: ignore[arg-type]
                self._calls.use_memory(memory)
                self.started_ns = time.monotonic_ns()
                exports[abi.EXPORTED_ENTRY](store)  # type: ignore[operator]
            except BaseException as error:
                self._judge(error, memory)
            else:
                self.verdict.set("exit")

    def _judge(self, error: BaseException, memory: GuestMemory | None) -> None:
        """The guest was unwound. If that was not foreseen, it trapped."""
        if self.verdict.outcome is not None:
            return
        code = error.trap_code if isinstance(error, wasmtime.Trap) else None
        message = code.name.lower().replace("_", " ") if code else modules.first_line(error) or "trap"
        used = 0 if memory is None else memory.size
        # A guest whose allocation was refused ends itself (Rust, C and Zig do: `unreachable`). Growing by doubling, it
        # then has more than half of what it may have.
        if code is wasmtime.TrapCode.UNREACHABLE and used > self._budget.memory_bytes // 2:
            self.verdict.set("memory", message=f"{used} of {self._budget.memory_bytes} bytes in use at the trap")
        else:
            self.verdict.set("trap", message=message)


def _host_function(name: str) -> Callable[..., Any]:
    method: Callable[..., Any] = getattr(Calls, name)

    def call(*args: int) -> Any:
        try:
            return method(_this_thread.guest.calls, *args)
        except CallFailed as error:
            return -error.errno
        except GuestStopped:
            pass
        except Exception as error:
            _blame_engine(error)
        # Raised here, where no frame holds anything of the run: the library keeps what passes through it.
        raise GuestStopped

    return call


def _blame_engine(error: Exception) -> None:
    """A bug of ours in a host function ends the guest, not the engine."""
    traceback.print_exception(error)
    _this_thread.guest.verdict.set("trap", message=f"engine: {modules.first_line(error)}")


def _at_epoch(_context: Any, _data: Any, delta: Any, kind: Any) -> int:
    """The epoch was raised; called in the thread of each guest that computes. Either on, or an error that unwinds."""
    if _this_thread.guest.verdict.outcome is None:
        delta[0] = 1
        kind[0] = _CONTINUE
        return 0
    return int(ctypes.cast(c.wasmtime_error_new(b"interrupted"), ctypes.c_void_p).value or 0)


_AT_EPOCH = _EpochCallback(_at_epoch)
