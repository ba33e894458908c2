"""The farm's launcher and its init: pid 1 of the farm's pid namespace, which execs root Zygotes and outlives them.

    python -m sockd.isolation.farm.farm_init <base> <control fd> <releases fd> <scratch fd> <cgroup procs fd>...

The launcher creates the namespaces, pivot_roots onto the base and forks init; both die with the daemon. Orphans of the farm are
reaped by the kernel, as init ignores SIGCHLD; where no pidfd tells exit statuses, init waits for them and tells (`Orphans`). The
launcher then closes the last descriptors of mount trees (`Farm.release`). Neither runs user code."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
from typing import Any

from sockd.isolation.farm.uids import SANDBOX_UID
from sockd.isolation.roots import base as bases
from sockd.linux import syscalls
from sockd.linux.processes import launching
from sockd.linux.syscalls import MountFlag
from sockd_zygote import linux, protocol

KEPT_CAPABILITIES = (linux.CAP_SETUID, linux.CAP_SETGID)
"""What farm init keeps for the root Zygotes that it execs: they write id maps."""
OWN_CAPABILITIES = f"{linux.bits(KEPT_CAPABILITIES):x}"
ALL_CAPABILITIES = (1 << 64) - 1
"""In the user namespace of a foreign interpreter, as a Zygote with packages has them in its own."""
NETWORK_CAPABILITIES = linux.bits((12, 13))
"""CAP_NET_ADMIN, CAP_NET_RAW: a walled Zygote has none over the networks that its user namespace owns."""
FOREIGN_FD = 64
NAMESPACES = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
"""Namespaces of a foreign interpreter, which shares nothing with those of its farm that are behind other walls but the
files."""
TRIES = 3
"""How often a root Zygote is spawned that is killed before it has a pidfd."""
MOST_STATUSES = 1024
"""How many of its last children's init remembers: the daemon asks within a moment of the end."""
RELEASE = b"release"
"""Sent when the sender of trees has closed its own fds of them: the next close is the last."""


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
    poller = select.poll()  # the daemon's descriptors may be above what select(2) takes
    poller.register(releases, select.POLLIN)
    poller.register(init, select.POLLIN)
    while init not in dict(poller.poll()):
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
    """Init's loop: answer `ready`, `exec`, `exec_foreign` and `status_of` until the daemon is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    orphans = Orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    flags = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC
    syscalls.mount("proc", "/proc", "proc", flags, "hidepid=invisible")
    null = os.open("/dev/null", os.O_RDWR)
    linux.drop_bounding_set(KEPT_CAPABILITIES)
    linux.keep_capabilities(KEPT_CAPABILITIES)
    buffer = bytearray(protocol.CONTROL_MAX_BYTES)
    with contextlib.suppress(ConnectionError):  # a daemon that was killed waits for no answer
        while True:
            data, fds = linux.receive(control, buffer, protocol.CONTROL_MAX_FDS)
            if not data:
                return
            message = protocol.decode_control(data)
            given: tuple[int, ...] = ()
            answer = {"op": "done", "id": message["id"]}
            if message["op"] == "ready" and message["reaps"]:
                orphans.watch()
            elif message["op"] == "status_of":
                answer["status"] = orphans.status(message["number"])
            elif message["op"] == "exec":
                given = (exec_zygote(message, fds, null),)
                fds.extend(given)
            elif message["op"] == "exec_foreign":
                try:
                    given = (exec_foreign(message, fds, null),)
                    fds.extend(given)
                except OSError as error:
                    answer |= {"op": "refused", "error": str(error)}
            linux.send(control, protocol.encode_control(answer), given)
            for fd in fds:
                os.close(fd)


class Orphans:
    """How the last children of init ended: root Zygotes, and processes whose Zygote ended before them."""

    def __init__(self) -> None:
        self._statuses: dict[int, int] = {}

    def watch(self) -> None:
        """Wait for children from now on."""
        signal.signal(signal.SIGCHLD, lambda *_: self._reap())

    def status(self, number: int) -> int:
        """The wait status of a child that has ended; -1: unknown."""
        self._reap()  # its signal may be about to come
        return self._statuses.get(number, -1)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._statuses.pop(ended[0], None)
                self._statuses[ended[0]] = ended[1]
                if len(self._statuses) > MOST_STATUSES:
                    self._statuses.pop(next(iter(self._statuses)))


def exec_zygote(message: dict[str, Any], fds: list[int], null: int) -> int:
    """Spawn a root Zygote with its control socket and cgroups; it closes all else itself. Returns its pidfd."""
    for fd in fds:
        os.set_inheritable(fd, True)
    control, *procs = fds
    procs_words = ",".join(map(str, procs))
    arguments = [*message["command"], str(control), procs_words, OWN_CAPABILITIES, ",".join(message["filters"]), ""]
    arguments.append("reaps" if message["reaps"] else "")
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    for _ in range(TRIES):
        pid = os.posix_spawn(arguments[0], arguments, message["env"], file_actions=actions)
        with contextlib.suppress(ProcessLookupError):  # killed at once, and reaped, as SIGCHLD is ignored: the next one
            return os.pidfd_open(pid)
    raise ProcessLookupError(f"{TRIES} root Zygotes ended before they could be watched")


def exec_foreign(message: dict[str, Any], fds: list[int], null: int) -> int:
    """Fork a child that confines itself and execs an interpreter which is foreign code; its pidfd. This process writes its id
    maps: that takes capabilities which the child does not have any more by then.

    Args: fds: control socket, what takes its stderr until it serves, then files of its cgroups. Raises: OSError."""
    mapless, unshared = os.pipe()
    mapped, go_on = os.pipe()
    try:
        pid = os.fork()  # noqa: TID251  SAFETY: init is single-threaded
        if pid == 0:
            try:
                become_foreign(message, fds, null, unshared, (mapped, go_on))
            except OSError as error:
                os.write(2, str(error).encode())
            finally:
                os._exit(1)
        pidfd = os.pidfd_open(pid)
        os.close(unshared)
        unshared = -1
        if os.read(mapless, 1):  # else it has ended, as its control socket tells
            write_id_maps(pid, *message["uids"])
            os.write(go_on, b"1")
        return pidfd
    finally:
        for fd in (mapless, unshared, mapped, go_on):
            if fd >= 0:
                os.close(fd)


def become_foreign(message: dict[str, Any], fds: list[int], null: int, unshared: int, maps: tuple[int, int]) -> None:
    """The child's half of `exec_foreign`, as a Zygote with packages is confined (zygote/native/confine.c). The order is the
    contract: cgroups, namespaces, ids, descriptors; last capabilities and filters, which hold before the first byte of the
    interpreter runs. Raises: OSError."""
    control, words, *procs = fds
    mapped, go_on = maps
    os.dup2(words, 2)
    os.close(go_on)  # or the end of an init that dies would not be seen
    for fd in procs:
        os.write(fd, b"0")
    is_walled = message["walled"]
    syscalls.unshare(NAMESPACES | (syscalls.CLONE_NEWNET if is_walled else 0))
    os.write(unshared, b"1")
    if not os.read(mapped, 1):
        raise OSError("no id maps were written")
    os.setsid()
    os.setgroups([])
    os.setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    os.setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    for fd in (0, 1):
        os.dup2(null, fd)
    control = fcntl.fcntl(control, fcntl.F_DUPFD, FOREIGN_FD)  # above what an interpreter opens by itself
    linux.close_fds_between(3, control - 1)
    linux.close_fds_from(control + 1)
    kept = ALL_CAPABILITIES & ~(NETWORK_CAPABILITIES if is_walled else 0)
    linux.drop_bounding_set(tuple(bit for bit in range(64) if kept >> bit & 1))
    syscalls.keep_across_exec(kept)
    linux.set_no_new_privs()
    arguments = [*message["command"], str(control), "", f"{kept:x}", ",".join(message["filters"]), message["place"]]
    arguments.append("reaps" if message["reaps"] else "")
    for program in message["own_filters"]:
        linux.install_filter(bytes.fromhex(program))
    os.execve(arguments[0], arguments, message["env"])


def write_id_maps(pid: int, first_uid: int, count: int) -> None:
    """As Zygotes write their children's: the first of the block has the number of every handler. Raises: OSError."""
    for name in ("uid_map", "gid_map"):
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        try:
            os.write(fd, b"%d %d %d" % (SANDBOX_UID, first_uid, count))
        finally:
            os.close(fd)


if __name__ == "__main__":
    main(*sys.argv[1:])
