"""A guest: one module's instance and its Store, entered once, in a thread that it has to itself.

How it ended is read from the run's own state (`Verdict`), never from what was raised: a trap does not tell which host function
unwound the guest, nor why.

A guest that computes is stopped by the machine's epoch: the thread that stops one marks its verdict and raises the epoch, at
which every running guest asks, in its own thread, whether it is meant. There is no ticker. The library has no name for that
question, so it is asked through its C interface.
"""

from __future__ import annotations

import ctypes
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import wasmtime
from wasmtime import _bindings as c

from sockd_initscripts.engine import abi, modules
from sockd_initscripts.engine.calls import Calls
from sockd_initscripts.engine.guest_cpu import GuestCpu, Turns
from sockd_initscripts.engine.guest_memory import GuestMemory
from sockd_initscripts.engine.host_functions import NO_FINALIZER, Entry, HostFunction, define
from sockd_initscripts.engine.modules import LoadedModule, ModuleFile
from sockd_initscripts.engine.signals import LoopCalls, Waiting
from sockd_initscripts.errors import BadModule, CallFailed, GuestStopped
from sockd_initscripts.limits import Budget
from sockd_initscripts.report import Outcome

TABLE_ELEMENTS = 100_000
_EpochCallback = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.POINTER(c.wasmtime_context_t),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(c.wasmtime_update_deadline_kind_t),
)
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
    """What all guests share: wasmtime's engine, the linked host functions, and the order of the slow ones."""

    def __init__(self) -> None:
        self.engine = modules.machine()
        self.linker = wasmtime.Linker(self.engine)
        self.turns = Turns()
        for name in abi.FUNCTIONS:
            define(self.linker, name, _host_function(name))

    def interrupt(self) -> None:
        """Have every guest that computes look at its verdict now. From any thread."""
        self.engine.increment_epoch()


class Instance:
    """A module's instance in a Store of its own. Nothing of the guest has run yet: modules have no start function.

    Whichever thread has it may enter it, one at a time. Raises wasmtime.WasmtimeError or Trap (a data segment that is out of
    bounds)."""

    def __init__(self, machine: Machine, loaded: LoadedModule, budget: Budget) -> None:
        self.store = wasmtime.Store(machine.engine)
        self.store.set_limits(
            memory_size=budget.memory_bytes, table_elements=TABLE_ELEMENTS, instances=1, tables=16, memories=1
        )
        # SAFETY: the signature is the binding's own; the function lives as long as this module, longer than any store.
        c.wasmtime_store_epoch_deadline_callback(self.store.ptr(), _AT_EPOCH, None, NO_FINALIZER)
        exports = loaded.pre.instantiate(self.store).exports(self.store)
        self.memory = GuestMemory(self.store, exports[abi.EXPORTED_MEMORY])  # type: ignore[arg-type]
        self.enter = Entry(self.store, exports[abi.EXPORTED_ENTRY])  # type: ignore[arg-type]
        """Call the guest's entry. Raises whatever unwinds it."""

    def close(self) -> None:
        """Free the memory."""
        self.store.close()


class GuestTemplate:
    """What a function's guests are made of: its module, and an instance ahead, since making one takes as long as all else
    until it runs. An instance is used once."""

    def __init__(self, machine: Machine, module: ModuleFile, budget: Budget) -> None:
        self.machine = machine
        self.budget = budget
        self._module = module
        self._spare: deque[Instance] = deque(maxlen=1)  # whose append and pop are atomic
        self._is_closed = False

    def take(self) -> Instance:
        """An instance, the caller's to close. Raises BadModule, and what Instance raises."""
        try:
            return self._spare.pop()
        except IndexError:
            return Instance(self.machine, self._module.load(self.machine.linker), self.budget)

    def memory_bytes(self) -> int:
        """What an instance begins with. Raises BadModule."""
        return self._module.load(self.machine.linker).memory_bytes

    def prepare(self) -> None:
        """Make the instance for the next guest, in the thread of one that has ended well."""
        if not self._spare and self._module.is_loaded and not self._is_closed:
            self._spare.append(self.take())

    def unload(self) -> None:
        """Free the memory; a guest that is to be loads the module again."""
        self._module.unload()
        self._spare.clear()

    def close(self) -> None:
        """No more guests; those that run go on."""
        self._is_closed = True
        self._spare.clear()
        self._module.close()


class Guest:
    """One guest; `run` is called in the thread that it is to have."""

    def __init__(
        self, template: GuestTemplate, calls: Calls, verdict: Verdict, loop_calls: LoopCalls, waiting: Waiting
    ) -> None:
        self._template = template
        self._calls = calls
        self._loop_calls = loop_calls
        self._waiting = waiting
        self.cpu: GuestCpu | None = None
        """None before its thread has it."""
        self.verdict = verdict
        self.started_ns = 0
        self.ended_ns = 0

    def run(self) -> None:
        """Load, instantiate, enter, and be over, with a verdict. Raises nothing."""
        _this_thread.guest = self
        self.cpu = GuestCpu(self._template.machine.turns, self._loop_calls, self._waiting)
        try:
            needed, limit = self._template.memory_bytes(), self._template.budget.memory_bytes
            if needed > limit:
                self.verdict.set("memory", message=f"the module begins with {needed} bytes of memory, of {limit}")
            else:
                self._live(self._template.take())
        except BadModule as error:
            self.verdict.set("bad_module", message=error.reason)
        except BaseException as error:
            self._judge(error, 0)
        finally:
            self.cpu.stop_computing()
            _this_thread.guest = None
            self.ended_ns = time.monotonic_ns()

    @property
    def calls(self) -> Calls:
        return self._calls

    def _live(self, instance: Instance) -> None:
        self._calls.use_memory(instance.memory)
        try:
            instance.store.set_epoch_deadline(1)
            # After the deadline is set: who has stopped the run since raises the epoch once more.
            if self.verdict.outcome is not None:
                return
            self.started_ns = time.monotonic_ns()
            instance.enter()
            self.verdict.set("exit")
        except BaseException as error:
            self._judge(error, instance.memory.size)
        finally:
            self._calls.use_memory(None)
            instance.close()

    def _judge(self, error: BaseException, used: int) -> None:
        """The guest was unwound. If that was not foreseen, it trapped."""
        code = error.trap_code if isinstance(error, wasmtime.Trap) else None
        message = code.name.lower().replace("_", " ") if code else modules.first_line(error) or "trap"
        limit = self._template.budget.memory_bytes
        # A guest whose allocation was refused ends itself (Rust, C and Zig do: `unreachable`). Growing by doubling, it
        # then has more than half of what it may have.
        if code is wasmtime.TrapCode.UNREACHABLE and used > limit // 2:
            self.verdict.set("memory", message=f"{used} of {limit} bytes in use at the trap")
        else:
            self.verdict.set("trap", message=message)


def _host_function(name: str) -> HostFunction:
    method: Callable[..., int | None] = getattr(Calls, name)

    def call(*args: int) -> int | None:
        guest = _this_thread.guest
        cpu = guest.cpu
        if cpu.is_slow:
            cpu.stop_computing()
        try:
            result = method(guest.calls, *args) or 0
        except CallFailed as error:
            result = -error.errno
        except GuestStopped:
            return None
        except BaseException as error:
            _blame_engine(error)
            return None
        if cpu.is_slow:
            cpu.begin_computing()
        return result

    return call


def _blame_engine(error: BaseException) -> None:
    """A bug of ours in a host function ends the guest, not the engine."""
    traceback.print_exception(error)
    _this_thread.guest.verdict.set("trap", message=f"engine: {modules.first_line(error)}")


def _at_epoch(_context: Any, _data: Any, delta: Any, kind: Any) -> int:
    """The epoch was raised; called in the thread of each guest that computes. Either on, or an error that unwinds."""
    guest = _this_thread.guest
    if guest.cpu.is_slow:
        guest.cpu.begin_computing()
    if guest.verdict.outcome is None:
        delta[0] = 1
        kind[0] = _CONTINUE
        return 0
    return int(ctypes.cast(c.wasmtime_error_new(b"interrupted"), ctypes.c_void_p).value or 0)


_AT_EPOCH = _EpochCallback(_at_epoch)
