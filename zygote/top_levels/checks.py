"""What is tried in a fork of a Zygote because no look at its modules can tell: threads, fork, ssl, sockets and numpy.

The handler `sockd_zygote.top_levels.checks:answer` of a new Zygote's canary (`sockd.starts.zygotes.learning.canary`), and a
part of each trial of a verification (`sockd_zygote.top_levels.trial`). No code of a function is called.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BEGUN = "\0sockd: "
"""Before the name of what is begun, in a line of what this process prints."""
WORKS, ABSENT = "works", "is not there"
"""What a check says if all is well. Every other outcome is described by its error."""
SIDE = 128
"""The side of the matrices that numpy multiplies: large enough that OpenBLAS would share the work among threads."""


def answer(event: Any) -> dict[str, str]:
    """Try everything; what came of it, by check. A canary's first request: whatever calls a handler was tried by then."""
    return {name: try_out(name, check) for name, check in CHECKED.items()}


def begin(what: str) -> None:
    """Say what is begun, for the case that it does not end. Not by sys.stdout, which packages replace."""
    os.write(1, f"\n{BEGUN}{what}\n".encode("utf-8", "backslashreplace"))


def last_begun(log: bytes) -> str:
    """What was begun last, as the log of a sandbox says; empty: nothing."""
    _, mark, rest = log.decode(errors="replace").rpartition(BEGUN)
    return rest.split("\n", 1)[0][:200] if mark else ""


def try_out(name: str, check: Callable[[], object]) -> str:
    begin(name)
    try:
        return str(check())
    except BaseException as error:  # of C code and of hooks of packages
        return type(error).__name__


def check_thread() -> str:
    import threading

    done: list[int] = []
    thread = threading.Thread(target=done.append, args=(1,))
    thread.start()
    thread.join()
    return WORKS if done else "did not run"


def check_fork() -> str:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        os._exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return WORKS if status == 7 else f"ends with {status}"


def check_ssl() -> str:
    import ssl

    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(inward, outward, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return WORKS if outward.pending else "sends nothing"
    return "ends too early"


def check_socket() -> str:
    import socket

    near, far = socket.socketpair()
    with near, far, socket.socket():
        near.sendall(WORKS.encode())
        return far.recv(len(WORKS)).decode()


def check_numpy() -> str:
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "dot"):
        return ABSENT
    ones = numpy.ones((SIDE, SIDE))
    total = float(numpy.dot(ones, ones).sum())
    return WORKS if total == SIDE**3 else f"gives {total}"


CHECKED: dict[str, Callable[[], object]] = {
    "a thread": check_thread,
    "fork": check_fork,
    "ssl": check_ssl,
    "a socket": check_socket,
    "numpy.dot": check_numpy,
}
"""Run in this order; in a trial after the fingerprint, as they import modules of the standard library."""
