"""A debugger for the function of this sandbox: debugpy, which connects to the worker and waits for the debugger's user.

Only in a sandbox that was made for it (`sockd invoke --debug`). debugpy's own adapter would be a process, and a port that
every function with network could connect to; its debug server speaks the same protocol itself, over a connection that it
makes, and the worker has the port. Where the loopback is the sandbox's own, debugpy connects to a thread here, which passes
everything on to a socket that the worker has given the sandbox.
"""

from __future__ import annotations

import os
import socket
import threading

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
CONNECTED = b"+"
"""The first byte that the worker gets over a link."""


def attach(port: int, link: int | None) -> None:
    """Return when a debugger has said that it is ready: before anything of the function has been imported. The function's
    code is the current directory.

    Args:
        port: the worker's, on the host's loopback.
        link: a connected stream socket, taken over; None: the sandbox reaches that port.
    Raises: whatever debugpy raises; OSError."""
    address = (LOOPBACK, port) if link is None else relayed(link)
    settings = {
        "IDE_PROJECT_ROOTS": os.getcwd(),  # "just my code" is this
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # or the function's log says that Python's own modules are frozen
    }
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    import debugpy  # type: ignore[import-not-found]  # noqa: T100

    debugpy.configure(subProcess=False)  # to debug them, too, takes the adapter
    debugpy.connect(address)
    debugpy.wait_for_client()  # noqa: T100
    for name in added:
        del os.environ[name]


def relayed(link: int) -> tuple[str, int]:
    """An address of which one connection is passed on over the link."""
    listener = socket.create_server((LOOPBACK, 0), backlog=1)
    in_thread(accept_one, listener, socket.socket(fileno=link))
    return LOOPBACK, listener.getsockname()[1]


def accept_one(listener: socket.socket, worker: socket.socket) -> None:
    with listener:
        debugger, _ = listener.accept()
    worker.sendall(CONNECTED)
    in_thread(copy, worker, debugger)
    copy(debugger, worker)


def copy(source: socket.socket, target: socket.socket) -> None:
    """Until the end of either."""
    try:
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def in_thread(call: object, *arguments: socket.socket) -> None:
    """Run it in a thread that debugpy neither shows nor stops."""
    thread = threading.Thread(target=call, args=arguments, daemon=True)  # type: ignore[arg-type]
    thread.pydev_do_not_trace = thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    thread.start()
