"""The worker's program, started by a process that runs it: in its place, or as another one; and tried before.

A process that is replaced hands its listening sockets on as systemd does (sd_listen_fds(3)). Owns nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import sockd

OWN_PROGRAM = (sys.executable, "-P", "-m", "sockd")
"""-P: the working directory's modules are not the worker's."""
CHECK = "--check"
"""`sockd up` with it reads the configuration, loads the program, and exits."""
CHECK_S = 60.0
MOST_SAID = 2000
"""Bytes of its last output that are kept."""
FIRST_FD = 3
"""SD_LISTEN_FDS_START."""

LEAST_FD_OF_CONFIGURATION = 100
"""Above the numbers that sockets get."""
_MEMORY = "/proc/self/fd/"


def environment() -> dict[str, str]:
    """Return the environment in which OWN_PROGRAM is this very program."""
    checkout = Path(sockd.__file__).resolve().parents[1]
    paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


async def why_not_again() -> str:
    """Load the worker that is installed now, with the same arguments and configuration file, in a process of its own.

    Returns: why it would not start; empty: it would, as far as that can be known without its state directory."""
    arguments = (*OWN_PROGRAM[1:], *_given(sys.argv[1:]), CHECK)
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment(), stdin=null, stdout=null, stderr=pipe
    )
    try:
        async with asyncio.timeout(CHECK_S):
            _, said = await process.communicate()
    except TimeoutError:
        return f"it was not loaded in {CHECK_S:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return ""
    return said[-MOST_SAID:].decode(errors="replace").strip() or f"it exited with status {process.returncode}"


def start_again(named: Sequence[tuple[str, socket.socket]], configuration: bytes | None) -> NoReturn:
    """Replace this process by a worker with the same arguments, as it is installed now. Raises: OSError.

    Args:
        named: the listening sockets that it gets, with their names.
        configuration: the text that it reads instead of the configuration file; None: the file."""
    arguments = [*_given(sys.argv[1:]), *(_from_memory(configuration) if configuration is not None else ())]
    # Out of the way first: a socket may have a number that another one is to have.
    moved = [fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_FD + len(named)) for _, sock in named]
    for number, descriptor in enumerate(moved, FIRST_FD):
        os.dup2(descriptor, number, inheritable=True)
    variables = {
        **environment(),
        "LISTEN_PID": str(os.getpid()),
        "LISTEN_FDS": str(len(named)),
        "LISTEN_FDNAMES": ":".join(name for name, _ in named),
    }
    starter = variables.get("NOTIFY_SOCKET", "")
    if not (starter.startswith("@") or os.path.exists(starter)):
        variables.pop("NOTIFY_SOCKET", None)  # `sockd up --detach` has returned
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # An ignored signal stays ignored behind execve(2). The one that restarts would end a program that does not handle it yet.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    os.execve(sys.executable, [*OWN_PROGRAM, *arguments], variables)


def _from_memory(configuration: bytes) -> list[str]:
    """Return the arguments that name a file in memory, which the next program inherits. The last --config counts."""
    descriptor = os.memfd_create("sockd.toml", 0)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(configuration)
    # Not a number of a socket's that is still to be moved there.
    kept = fcntl.fcntl(descriptor, fcntl.F_DUPFD, LEAST_FD_OF_CONFIGURATION)
    os.close(descriptor)
    return ["--config", f"{_MEMORY}{kept}"]


def _given(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments that a user has given: what `_from_memory` added for this process is closed in the next one."""
    is_ours = len(arguments) > 1 and arguments[-2] == "--config" and arguments[-1].startswith(_MEMORY)
    return arguments[:-2] if is_ours else arguments
