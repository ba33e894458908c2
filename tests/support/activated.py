"""`sockd up` as systemd starts it for a socket unit: with a listening socket of its parent's as descriptor 3.

python -m tests.support.activated FD ARGUMENT ...      FD: the number that the socket has in the parent
"""

from __future__ import annotations

import ctypes
import os
import sys

_PIDFD_GETFD = 438  # x86_64


def main() -> None:
    """Take the socket, and become the worker. Raises: OSError."""
    pidfd = os.pidfd_open(os.getppid())
    libc = ctypes.CDLL(None, use_errno=True)
    # SAFETY: numbers alone; the kernel makes a new descriptor.
    descriptor = libc.syscall(_PIDFD_GETFD, pidfd, int(sys.argv[1]), 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    os.dup2(descriptor, 3, inheritable=True)
    variables = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "sockd.socket"}
    command = [sys.executable, "-m", "sockd", *sys.argv[2:]]
    os.execve(sys.executable, command, {**os.environ, **variables})


if __name__ == "__main__":
    main()
