"""The farm's launcher and its init: pid 1 of the farm's pid namespace, which execs root Zygotes and outlives them.

    python -m sockd.sandbox.farm_init <base> <control fd> <releases fd> <scratch fd> <cgroup procs fd>...

The launcher creates the namespaces, pivot_roots onto the base and forks init; both die with the daemon. Init ignores SIGCHLD,
so the kernel reaps orphans of the farm. The launcher then closes the last descriptors of mount trees (`Farm.release`). Neither
runs user code."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from typing import Any

from sockd.images import base as bases
from sockd.images import environment
from sockd.kernel import launching, syscalls
from sockd.kernel.syscalls import MountFlag
from sockd_zygote import linux, protocol

KEPT_CAPABILITIES = (linux.CAP_SETUID, linux.CAP_SETGID)
"""What farm init keeps for the root Zygotes that it execs: they write id maps."""
TRIES = 3
"""How often a root Zygote is spawned that is killed before it has a pidfd."""
RELEASE = b"release"
"""Said when whoever has sent trees has closed its own fds of them: the next close is the last."""


def main(base: str, control_fd: str, releases_fd: str, scratch_fd: str, *procs_fds: str) -> None:
    launching.die_with_parent()
    launching.enter(base, scratch_fd=int(scratch_fd), procs_fds=map(int, procs_fds))
    socket.sethostname(bases.HOSTNAME)
    control, releases = socket.socket(fileno=int(control_fd)), socket.socket(fileno=int(releases_fd))
    init = os.fork()  # noqa: TID251  SAFETY: this process is single-threaded and was exec'd for this
    if init == 0:
        launching.die_with_parent()
        releases.close()
        serve(control)
        os._exit(0)
    control.close()
    linux.drop_bounding_set()
    linux.keep_capabilities()
    release(releases, os.pidfd_open(init))
    os.waitpid(init, 0)


def release(releases: socket.socket, init: int) -> None:
    """The launcher's loop: close the trees that it is sent, until the daemon or init, a pidfd, is gone."""
    trees: list[int] = []
    buffer = bytearray(len(RELEASE))
    while init not in select.select([releases.fileno(), init], [], [])[0]:
        try:
            data, fds = linux.receive(releases, buffer, 1)
        except OSError:  # no fd could be had for it: its sender's is the last
            continue
        if not data:
            return
        trees += fds
        if data == RELEASE:
            while trees:
                os.close(trees.pop())


def serve(control: socket.socket) -> None:
    """Init's loop: answer `ready` and `exec` until the daemon is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    flags = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC
    syscalls.mount("proc", "/proc", "proc", flags, "hidepid=invisible")
    procfs = syscalls.open_tree(syscalls.AT_FDCWD, "/proc", recursive=False)  # for roots that are made early
    null = os.open("/dev/null", os.O_RDWR)
    linux.drop_bounding_set(KEPT_CAPABILITIES)
    linux.keep_capabilities(KEPT_CAPABILITIES)
    buffer = bytearray(protocol.CONTROL_MAX_BYTES)
    while True:
        data, fds = linux.receive(control, buffer, protocol.CONTROL_MAX_FDS)
        if not data:
            return
        message = protocol.decode_control(data)
        given: tuple[int, ...] = (procfs,) if message["op"] == "ready" else ()
        if message["op"] == "exec":
            given = (exec_zygote(message, fds, null),)
            fds.extend(given)
        linux.send(control, protocol.encode_control({"op": "done", "id": message["id"]}), given)
        for fd in fds:
            os.close(fd)


def exec_zygote(message: dict[str, Any], fds: list[int], null: int) -> int:
    """Spawn a root Zygote with its control socket and cgroups; it closes all else itself. Returns its pidfd."""
    for fd in fds:
        os.set_inheritable(fd, True)
    control, *procs = fds
    arguments = [*message["command"], str(control), ",".join(map(str, procs)), ",".join(message["filters"])]
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    env = environment.OF_EXEC | environment.OF_LOADING
    for _ in range(TRIES):
        pid = os.posix_spawn(arguments[0], arguments, env, file_actions=actions)
        with contextlib.suppress(ProcessLookupError):  # killed at once, and reaped, as SIGCHLD is ignored: the next one
            return os.pidfd_open(pid)
    raise ProcessLookupError(f"{TRIES} root Zygotes ended before they could be watched")


if __name__ == "__main__":
    main(*sys.argv[1:])
