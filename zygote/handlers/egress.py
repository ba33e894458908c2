"""Egress: whether this sandbox may have changed anything outside of itself since its initscript began.

A reply that an initscript fetched is what a read of the function would return only until the function's first write. What
a process sends cannot be read from here, so everything that leaves counts as a write unless it is proven to be a read:
a Python socket that connects or sends a datagram, a socket that C code opened, another process. The storage library
proves its own reads with `exempt`.

Python code is observed by an audit hook (PEP 578, sys.addaudithook), which cannot be removed: only sandboxes whose function
has an initscript get one. C code is observed by what it leaves open: a C library that connects, writes and closes its socket
between two reads of the storage library is not seen.
"""

from __future__ import annotations

import _thread
import os
import sys
from time import monotonic_ns

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")
STARTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "pty.spawn",
)
LEAVING = frozenset((*SENDS, *STARTS))
"""Audit events of code that sends something, or that starts a process which may."""
SPAWNERS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
"""Modules that start processes without an audit event; they are imported when the first is started."""
FDS = "/proc/self/fd"

began_ns = 0
"""When the initscript's replies began to age (CLOCK_MONOTONIC); 0: nothing is observed."""
_noted = ""
_inherited: frozenset[str] = frozenset()
_processes: frozenset[str] | None = None
_python_sockets: list[Any] = []
_threads = _thread._local()


def watch() -> None:
    """Observe this process from now on, to its end. Call it before the function's code runs, once."""
    global _processes
    begin()
    _processes = frozenset(_running())
    sys.addaudithook(_observe)


def begin() -> None:
    """Count from here, without a hook and without other processes: those beside the root Zygote are not its own."""
    global began_ns, _inherited, _noted
    began_ns = monotonic_ns()
    _noted = ""
    _inherited = frozenset(name for _, name in _open_sockets())


def forget() -> None:
    """Undo `begin`."""
    global began_ns
    began_ns = 0


def note(what: str) -> None:
    """Something left this sandbox."""
    global _noted
    _noted = _noted or what


def reason() -> str:
    """Why a prefetched reply may be older than a write of this function; "" if there was none."""
    if not began_ns:
        return "nothing was observed in this process"
    if not _noted:
        _look()
    return _noted


class exempt:
    """`with exempt():` what this thread sends is part of a read."""

    def __enter__(self) -> None:
        _threads.depth = getattr(_threads, "depth", 0) + 1

    def __exit__(self, *error: object) -> None:
        _threads.depth -= 1


def _observe(event: str, args: tuple[Any, ...]) -> None:
    if event == "socket.__new__":
        from _weakref import ref

        try:
            _python_sockets.append(ref(args[0], _python_sockets.remove))
        except TypeError:  # a socket type of C code's that has no weak references
            note("a socket that cannot be observed")
    elif event in LEAVING and not getattr(_threads, "depth", 0):
        note(event)


def _look() -> None:
    """Find what no audit event tells of."""
    known = {found.fileno() for found in (ref() for ref in list(_python_sockets)) if found is not None}
    for fd, name in _open_sockets():
        if fd not in known and name not in _inherited:
            note(f"{name}, which C code opened")
    if _processes is not None:
        for name in frozenset(_running()) - _processes:
            note(f"process {name}")
    for name in SPAWNERS:
        if name in sys.modules:
            note(name)


def _running() -> list[str]:
    """The processes of this sandbox, as its /proc names them."""
    return [name for name in os.listdir("/proc") if name.isdecimal()]


def _open_sockets() -> Iterator[tuple[int, str]]:
    """(descriptor, "socket:[inode]") of this process."""
    for number in os.listdir(FDS):
        try:
            name = os.readlink(f"{FDS}/{number}")
        except OSError:  # the descriptor of the directory itself
            continue
        if name.startswith("socket:"):
            yield int(number), name
