"""What attack code has at hand: raw system calls, and children to try them in. Deployed beside each attack as prelude.py.

Standard library only; it runs inside sandboxes and Zygotes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select  # noqa: F401  for attacks, as some below
import signal
import socket  # noqa: F401
import stat  # noqa: F401
import struct  # noqa: F401
import time  # noqa: F401
from collections.abc import Callable, Iterable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
_syscall = libc.syscall
_syscall.restype = ctypes.c_long

_python = ctypes.pythonapi  # which holds the interpreter's lock in calls

AT_FDCWD = -100


def name_of(number: int) -> str:
    """EPERM for 1."""
    return errno.errorcode.get(number, str(number))


def syscall(number: int, *arguments: Any) -> tuple[int, str]:
    """(result, "" or the errno's name) of a raw call; bytes and buffers are passed as pointers."""
    ctypes.set_errno(0)
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = _syscall(ctypes.c_long(number), *given)
    return result, name_of(ctypes.get_errno()) if result == -1 else ""


def refusal(number: int, *arguments: Any) -> str:
    """The errno's name of a raw call, "ok" if it succeeded."""
    return syscall(number, *arguments)[1] or "ok"


def outcome(call: Callable[..., Any], *arguments: Any) -> str:
    """ "ok", or what it raised: the errno's name of an OSError, else the exception's."""
    try:
        call(*arguments)
    except OSError as error:
        return name_of(error.errno) if error.errno else type(error).__name__
    except Exception as error:
        return type(error).__name__
    return "ok"


def outcomes(calls: dict[str, Callable[[], Any]]) -> dict[str, str]:
    return {name: outcome(call) for name, call in calls.items()}


def read(path: str, most: int = 4096) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(most) or b""


def readable(paths: Iterable[str]) -> list[str]:
    """Return the files that give at least one byte."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            if read(path, 1):
                found.append(path)
    return found


def fork() -> int:
    """As os.fork(), but unheard: a Zygote that hears an import start a process is given up, and an attack would be over."""
    _python.PyOS_BeforeFork()  # takes the import lock, which since 3.13 only its owner may release
    pid: int = _python.fork()
    if pid == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()
    return pid


def in_child(call: Callable[..., Any], *arguments: Any, seconds: float = 5.0) -> Any:
    """What `call` returns in a forked child (as JSON); "killed by ..." when a signal ended it, "blocks" when it took too
    long, "ends" when it ended the child in order."""
    taken, given = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            os.close(taken)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            me = os.getpid()
            answer = json.dumps(call(*arguments))
            if os.getpid() == me:
                os.write(given, answer.encode())
        finally:
            os._exit(0)
    os.close(given)
    with open(taken, "rb") as pipe:
        given_back = pipe.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "blocks" if number == signal.SIGALRM else f"killed by {signal.Signals(number).name}"
    return json.loads(given_back) if given_back else "ends"


def top() -> list[str]:
    """Names in the root directory as seen from where `..` ends."""
    for _ in range(30):
        os.chdir("..")
    return sorted(os.listdir("."))


def visible_pids() -> list[int]:
    """Every process that /proc shows, by name or by number."""
    shown = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return sorted(shown | {number for number in range(1, 2000) if os.path.exists(f"/proc/{number}/status")})


def living_pids(most: int = 5000) -> list[int]:
    """Every process that a signal could be sent to, allowed or not; /proc may hide them, kill(2) does not."""
    found = []
    for pid in range(1, most):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        except PermissionError:
            pass
        found.append(pid)
    return found
