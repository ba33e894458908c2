"""A Zygote: an interpreter that has imported packages and forks, blocking and single-threaded, until its daemon is gone.

Owns its control socket and, for the length of one message, the descriptors that came with it. Knows no function: code,
environment and secrets reach the child on the child's own channel, after the fork.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`: its enums would cost each child some twenty copied pages
import gc
import os
import socket
import sys
import time
from collections import namedtuple

from zygote import confinement, hygiene, linux, protocol

Zygote = namedtuple("Zygote", "control null handler_filter zygote_filter")
"""control: the SOCK_SEQPACKET socket; null: an fd of /dev/null; the filters: linux.SeccompFilter."""

Child = namedtuple("Child", "kind channel_fd warm")
"""What a forked child is to do, returned from the loop so that it runs at the top of the stack, not five frames deep:
kind "sandbox" serves requests on channel_fd, kind "zygote" serves forks on it."""


def serve(zygote: Zygote) -> Child | None:
    """Answer control messages; returns None in the Zygote when the daemon is gone, and a Child in each forked child."""
    buffer = bytearray(protocol.CONTROL_MAX_BYTES)
    while True:
        data, fds = linux.receive(zygote.control, buffer, protocol.CONTROL_MAX_FDS)
        if not data:
            return None
        message = protocol.decode_control(data)
        try:
            child = OPERATIONS[message["op"]](zygote, message, fds)
        except Exception as error:
            refuse(zygote, message, error)
            child = None
        if child is not None:
            return child
        for fd in fds:
            os.close(fd)


def fork_sandbox(zygote: Zygote, message: dict, fds: list[int]) -> Child | None:
    """`fork`: one confined child that waits for a function on its channel."""
    root, channel, output, *procs = fds
    namespaces = confinement.SANDBOX_NAMESPACES
    if message["network"] == "none":
        namespaces |= linux.CLONE_NEWNET

    def confine(maps_ready: int) -> None:
        confinement.confine_sandbox(root, channel, output, zygote.null, maps_ready, zygote.handler_filter)

    forked = fork(zygote, message, namespaces, procs, (confinement.SANDBOX_UID, message["uid"], 1), confine, channel)
    return Child("sandbox", confinement.CHANNEL_FD, message["warm"]) if forked else None


def fork_zygote(zygote: Zygote, message: dict, fds: list[int]) -> Child | None:
    """`spawn`: one child that is a Zygote itself, root of a user namespace over its own block of uids."""
    control, *procs = fds

    def confine(maps_ready: int) -> None:
        confinement.confine_zygote(control, zygote.null, maps_ready, zygote.zygote_filter)

    ids = (0, message["first_uid"], message["uid_count"])
    if not fork(zygote, message, linux.CLONE_NEWUSER, procs, ids, confine, control):
        return None
    os.environ["HOME"] = os.environ["TMPDIR"] = message["scratch"]
    return Child("zygote", confinement.CHANNEL_FD, False)


def fork(zygote, message, namespaces, procs, ids, confine, connection) -> bool:  # type: ignore[no-untyped-def]
    """Clone a child and write its id maps; True in the child once it is confined, False in the Zygote.

    Args: namespaces: CLONE_NEW* flags; procs: fds of its cgroups; ids: (inside, outside, count) of its id maps;
        confine: called in the child with the pipe that says when the maps stand; connection: its way to the daemon."""
    maps_ready, maps_written = os.pipe()
    try:
        pid, pidfd = linux.clone(namespaces, procs)
    except linux.NotJoined as error:
        end(connection, error)
    except OSError:
        os.close(maps_ready)
        os.close(maps_written)
        raise
    if pid == 0:
        zygote.control.detach()  # its number will be our own connection's: it must not be closed with this object
        os.close(maps_written)  # or the read below would never see the end of a Zygote that died
        become(lambda: confine(maps_ready), connection)
        return True
    try:
        inside, outside, count = ids
        linux.write_id_maps(pid, inside=inside, outside=outside, count=count)
        os.write(maps_written, b"1")
        answer = {"op": "forked", "id": message["id"], "pid": pid}
        linux.send(zygote.control, protocol.encode_control(answer), (pidfd,))
    finally:
        for fd in (pidfd, maps_ready, maps_written):
            os.close(fd)
    return False


def become(confine, connection: int) -> None:  # type: ignore[no-untyped-def]
    """The child's confinement. A failure is told to the daemon and ends the child here."""
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        confine()
    except BaseException as error:
        end(connection, error)


def end(connection: int, error: BaseException) -> None:
    """End this child, which must not go on half-confined, and tell the daemon why."""
    try:
        body = protocol.TIMES.pack(0, 0) + repr(error).encode()
        os.write(connection, protocol.encode_frame(protocol.FAILED, 0, body))
    finally:
        os._exit(1)


def import_modules(zygote: Zygote, message: dict, fds: list[int]) -> None:
    """`import`: put the packages on sys.path, import the modules, and settle for forking."""
    sys.path[:0] = message["paths"]
    started = time.monotonic()
    failed = {}
    gc.disable()
    for name in message["modules"]:
        try:
            __import__(name)
        except BaseException as error:  # user code: SystemExit and KeyboardInterrupt are failures like any other
            failed[name] = f"{type(error).__name__}: {error}"[:500]
    seconds = time.monotonic() - started
    hygiene.settle()
    answer = {
        "op": "imported",
        "id": message["id"],
        "seconds": seconds,
        "threads": hygiene.thread_count(),
        "failed": failed,
    }
    linux.send(zygote.control, protocol.encode_control(answer))


def refuse(zygote: Zygote, message: dict, error: Exception) -> None:
    """Tell the daemon that nothing was done, and why."""
    answer = {"op": "refused", "id": message["id"], "error": f"{type(error).__name__}: {error}"[:500]}
    linux.send(zygote.control, protocol.encode_control(answer))


OPERATIONS = {"fork": fork_sandbox, "spawn": fork_zygote, "import": import_modules}


def child_zygote(parent: Zygote, control_fd: int) -> Zygote:
    """The Zygote that a forked child serves as: its parent's filters, its own control socket."""
    return parent._replace(
        control=socket.socket(fileno=control_fd), null=os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    )
