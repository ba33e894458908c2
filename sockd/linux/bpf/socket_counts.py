"""Counts of the IP sockets that the processes of a cgroup have open, bounded by eBPF programs (`socket_programs`).

Owns the counters: an array that the kernel's programs and this process share as memory, so that a limit is changed without a
system call. A socket is counted in three accounts: its cgroup's, the function's that this belongs to, and the worker's. It stays
in those that it was made in, whichever process holds it, until its last descriptor is closed: passed on to another sandbox it is
still its maker's, and a cgroup whose account is not empty is not used again (`Cgroup.scrub`). An accepted connection is counted
as long as the kernel has it; so is, for a minute, each TCP port that was bound or listened on, as TIME_WAIT may keep it: but in
the accounts of function and worker alone.

A process reads how often its own cgroup may have sent something, as an option of any socket that it makes
(`sockd_zygote.handlers.egress`).

Checked first, added later: processors that make sockets in the same microsecond may exceed a limit by one each. What is
accepted is counted, but not refused: it takes a listener, which is refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from collections import deque
from contextlib import ExitStack
from pathlib import Path

from sockd.linux.bpf import bpf
from sockd.linux.bpf.port_guard import attach_program
from sockd.linux.bpf.socket_programs import (
    EXPIRED,
    FIELDS,
    FUNCTION,
    MOST,
    OPEN,
    PORTS,
    STORAGE_BYTES,
    WORKER,
    count,
    follow_connections,
    note_port,
    note_unix,
    tell_uses,
    uncount,
)
from sockd_zygote.handlers import egress

NO_LIMIT = 0xFFFFFFFF
"""The limit of a cgroup: its sockets are not counted, the worker's limit included."""
NO_FUNCTION = 0
"""The account of what belongs to no function; the worker's is of everything."""
PORT_KEPT_S = 65.0
"""How long a TCP port may be taken after its sockets were closed: TIME_WAIT, 60 s in Linux."""
_ACCOUNTS = 1 << 15
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Account:
    """A counter and its limit. `close` gives it back."""

    def __init__(self, counts: SocketCounts, index: int) -> None:
        self._counts = counts
        self.index = index

    @property
    def open(self) -> int:
        """How many sockets are counted in it now."""
        return self._counts.read(self.index)

    def limit(self, most: int = NO_LIMIT, function: int = NO_FUNCTION) -> None:
        """Set the limit, and the account in which what is made from now on is counted as well. No system call."""
        if self.index > WORKER:
            self._counts.write(self.index, most, function)

    def close(self) -> None:
        """Give it back; it is used again when no socket is counted in it any more."""
        self._counts.give_back(self.index)
        self.index = NO_FUNCTION


class SocketCounts:
    """`attach` makes one; the constructor makes one that counts nothing, for hosts that cannot."""

    def __init__(self) -> None:
        self._cgroups_fd = -1
        self._fields: memoryview | None = None
        self._lock = threading.Lock()  # cgroups are made in threads
        self._used = WORKER + 1
        self._free: deque[int] = deque()
        self._not_empty: deque[int] = deque()
        self._ports: deque[tuple[float, dict[int, int]]] = deque()
        """When how many ports had been taken in which accounts."""

    @classmethod
    def attach(cls, directory: str, most: int = NO_LIMIT) -> SocketCounts:
        """Count in a cgroup of v2 and all below it. Args: most: of all together.

        Raises: OSError: this kernel or our capabilities do not suffice, as `PortGuard.attach`."""
        counts = cls()
        with ExitStack() as loaded:  # the programs keep their maps; ours are the memory, and the map of cgroups
            loaded.callback(os.close, storage := bpf.socket_storage(STORAGE_BYTES))
            accounts, memory = bpf.shared_array(4 * FIELDS, _ACCOUNTS)
            loaded.callback(os.close, accounts)
            counts._fields = memoryview(memory).cast("I")
            counts.write(NO_FUNCTION, NO_LIMIT, NO_FUNCTION)
            counts.write(WORKER, most, NO_FUNCTION)
            counts._cgroups_fd = bpf.hash_map(8, 4, _ACCOUNTS)
            try:
                counts._attach(directory, counts._cgroups_fd, accounts, storage)
            except BaseException:
                counts.close()
                raise
        return counts

    def _attach(self, directory: str, cgroups_fd: int, accounts_fd: int, storage_fd: int) -> None:
        create, release = bpf.Attach.INET_SOCK_CREATE, bpf.Attach.INET_SOCK_RELEASE
        kind = bpf.ProgramType.CGROUP_SOCK
        ports = note_port(accounts_fd, storage_fd)
        attach_program(
            directory,
            kind,
            {
                release: uncount(accounts_fd, storage_fd),
                bpf.Attach.INET4_POST_BIND: ports,
                bpf.Attach.INET6_POST_BIND: ports,
            },
        )
        connections = {bpf.Attach.SOCK_OPS: follow_connections(accounts_fd, storage_fd)}
        attach_program(directory, bpf.ProgramType.SOCK_OPS, connections)
        unix = note_unix(cgroups_fd, accounts_fd)
        with contextlib.suppress(OSError):  # before Linux 6.7 no program sees Unix sockets
            attach_program(
                directory,
                bpf.ProgramType.CGROUP_SOCK_ADDR,
                {bpf.Attach.UNIX_CONNECT: unix, bpf.Attach.UNIX_SENDMSG: unix},
            )
        counter = tell_uses(cgroups_fd, accounts_fd, egress.LEVEL, egress.USES)
        attach_program(directory, bpf.ProgramType.CGROUP_SOCKOPT, {bpf.Attach.GETSOCKOPT: counter})
        try:
            attach_program(directory, kind, {create: count(cgroups_fd, accounts_fd, storage_fd, errno.EMFILE)})
        except OSError:  # before Linux 5.18 a program cannot say which error it is: EPERM
            attach_program(directory, kind, {create: count(cgroups_fd, accounts_fd, storage_fd, 0)})

    @property
    def counts(self) -> bool:
        """Whether anything is counted."""
        return self._fields is not None

    @property
    def open(self) -> int:
        """Sockets of all cgroups."""
        return self.read(WORKER)

    def account(self, most: int = NO_LIMIT) -> Account:
        """A new account. There are 32 766; when all are taken, it is one that has no limit and counts nothing."""
        with self._lock:
            index = self._unused() if self.counts else NO_FUNCTION
        if index > WORKER:
            self.write(index, most, NO_FUNCTION)
        return Account(self, index)

    def _unused(self) -> int:
        """The index of an account that is free and nothing is counted in, or NO_FUNCTION."""
        for _ in range(len(self._not_empty)):
            self.give_back(self._not_empty.popleft())
        # One that was never used first: of a function that was removed, a sandbox may still be on its last request.
        if self._used < _ACCOUNTS:
            self._used += 1
            return self._used - 1
        return self._free.popleft() if self._free else NO_FUNCTION

    def enroll(self, directory: str, account: Account) -> None:
        """Count in this account what is made in a cgroup. Raises: OSError."""
        if self.counts:
            bpf.update(self._cgroups_fd, _id_of(directory), struct.pack("=I", account.index))

    def withdraw(self, directory: str) -> None:
        """Count no more in a cgroup that is about to be removed."""
        if self.counts:
            try:
                bpf.delete(self._cgroups_fd, _id_of(directory))
            except FileNotFoundError:
                return

    def read(self, index: int) -> int:
        """How many are open."""
        return self._fields[FIELDS * index + OPEN] if self._fields is not None else 0

    def write(self, index: int, most: int, function: int) -> None:
        """Set the limit and the function's account."""
        if self._fields is not None:
            self._fields[FIELDS * index + MOST] = most
            self._fields[FIELDS * index + FUNCTION] = function

    def give_back(self, index: int) -> None:
        """Use an account again, as soon as it is empty."""
        if index > WORKER:
            (self._not_empty if self.read(index) else self._free).append(index)

    def forget_ports(self, now_s: float) -> None:
        """Count no more the ports that were taken over a minute ago; to be called every few seconds. Costs some µs where no
        function has bound any since."""
        fields = self._fields
        if fields is None:
            return
        while self._ports and self._ports[0][0] <= now_s - PORT_KEPT_S:
            for index, total in self._ports.popleft()[1].items():
                fields[FIELDS * index + EXPIRED] = total
        newest = self._ports[-1][1].get(WORKER) if self._ports else fields[FIELDS * WORKER + EXPIRED]
        if fields[FIELDS * WORKER + PORTS] != newest:
            end = FIELDS * self._used
            pairs = enumerate(zip(fields[PORTS:end:FIELDS], fields[EXPIRED:end:FIELDS], strict=True))
            self._ports.append((now_s, {index: taken for index, (taken, expired) in pairs if taken != expired}))

    def close(self) -> None:
        """Let go of the maps; the programs go on counting until the cgroup is removed."""
        self._fields = None
        fd, self._cgroups_fd = self._cgroups_fd, -1
        if fd >= 0:
            os.close(fd)


UNCOUNTED = SocketCounts()
"""Counts nothing."""


def ephemeral_ports() -> int:
    """How many ports the kernel picks from where a program names none (ip(7), ip_local_port_range)."""
    first, last = map(int, _PORT_RANGE.read_text().split())
    return last - first + 1


def _id_of(directory: str) -> bytes:
    """A cgroup's id: the inode number of its directory in v2, as bpf_get_current_cgroup_id gives it."""
    return struct.pack("=Q", os.stat(directory).st_ino)
