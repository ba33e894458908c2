"""How many IP sockets the processes of a cgroup have open: counted, and bounded, by eBPF programs at socket(2) and at its end.

Owns the counters: an array that the kernel's programs and this process share as memory, so that a limit is changed without a
system call. A socket is counted in three accounts: its cgroup's, the function's that this belongs to, and the worker's.
It stays in those that it was made in, whoever holds it, until its last descriptor is closed: passed on to another sandbox
it is still its maker's, and a cgroup whose account is not empty is not used again (`Cgroup.scrub`).

Checked first, added later: processors that make sockets in the same microsecond may exceed a limit by one each.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from pathlib import Path

from sockd.kernel import bpf
from sockd.kernel.port_guard import attach_program

NO_LIMIT = 0xFFFFFFFF
NO_FUNCTION, WORKER = 0, 1
"""Accounts that always are: of what belongs to no function, and of everything."""
_ACCOUNTS = 1 << 16
_FIELDS = 4
"""Of an account, 32 bits each: open, most, the function's account; one is free."""
_OPEN, _MOST, _FUNCTION = range(_FIELDS - 1)
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

    def limit(self, most: int, function: int = NO_FUNCTION) -> None:
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
        self._fds: list[int] = []
        self._cgroups_fd = -1
        self._fields: memoryview | None = None
        self._used = WORKER + 1
        self._free: deque[int] = deque()
        self._not_empty: deque[int] = deque()

    @classmethod
    def attach(cls, directory: str, most: int = NO_LIMIT) -> SocketCounts:
        """Count in a cgroup of v2 and all below it. Args: most: of all together.

        Raises: OSError: this kernel or our capabilities do not suffice (`PortGuard.attach`; and Linux 5.12)."""
        counts = cls()
        try:
            counts._cgroups_fd = counts._keep(bpf.hash_map(8, 4, _ACCOUNTS))
            accounts_fd, memory = bpf.shared_array(4 * _FIELDS, _ACCOUNTS)
            counts._keep(accounts_fd)
            counts._fields = memoryview(memory).cast("I")
            maps = counts._cgroups_fd, accounts_fd, counts._keep(bpf.socket_storage(8))
            counts.write(NO_FUNCTION, NO_LIMIT, NO_FUNCTION)
            counts.write(WORKER, most, NO_FUNCTION)
            counts._attach(directory, *maps)
        except BaseException:
            counts.close()
            raise
        return counts

    def _attach(self, directory: str, cgroups_fd: int, accounts_fd: int, storage_fd: int) -> None:
        create, release = bpf.Attach.INET_SOCK_CREATE, bpf.Attach.INET_SOCK_RELEASE
        kind = bpf.ProgramType.CGROUP_SOCK
        attach_program(directory, kind, {release: uncount(accounts_fd, storage_fd)})
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
        """A new account. There are 65 534; when all are taken, what would be counted in one is only counted in the worker's."""
        for _ in range(len(self._not_empty)):
            self.give_back(self._not_empty.popleft())
        if not self.counts:
            return Account(self, NO_FUNCTION)
        # One that was never used first: of a function that was removed, a sandbox may still be on its last request.
        if self._used < _ACCOUNTS:
            index, self._used = self._used, self._used + 1
        elif self._free:
            index = self._free.popleft()
        else:
            return Account(self, NO_FUNCTION)
        self.write(index, most, NO_FUNCTION)
        return Account(self, index)

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
        return self._fields[_FIELDS * index + _OPEN] if self._fields is not None else 0

    def write(self, index: int, most: int, function: int) -> None:
        """Set the limit and the function's account."""
        if self._fields is not None:
            self._fields[_FIELDS * index + _MOST] = most
            self._fields[_FIELDS * index + _FUNCTION] = function

    def give_back(self, index: int) -> None:
        """Use an account again, as soon as it is empty."""
        if index > WORKER:
            (self._not_empty if self.read(index) else self._free).append(index)

    def close(self) -> None:
        """Let go of the maps; the programs go on counting until the cgroup is removed."""
        self._fields = None
        self._cgroups_fd = -1
        while self._fds:
            os.close(self._fds.pop())

    def _keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd


UNCOUNTED = SocketCounts()
"""Counts nothing."""


def count(cgroups_fd: int, accounts_fd: int, storage_fd: int, refusal: int) -> bpf.Code:
    """At socket(2): refuse if one of the three accounts is full, or else note the socket's own and the function's beside it,
    and add 1 to each. Args: refusal: the errno; 0: what the kernel says by itself."""
    own, function, worker = -16, -12, -20
    code: list[bpf.Instruction | str] = [bpf.copy(bpf.R6, bpf.R1)]
    code += [bpf.call(bpf.Helper.GET_CURRENT_CGROUP_ID), bpf.store64(bpf.R10, -8, bpf.R0)]
    code += [*bpf.lookup(cgroups_fd, -8), bpf.jump_if_equal(bpf.R0, 0, "allow")]
    code += [bpf.load32(bpf.R1, bpf.R0, 0), bpf.store32(bpf.R10, own, bpf.R1)]
    code += _room(accounts_fd, own, bpf.R7)
    code += [bpf.load32(bpf.R1, bpf.R7, 4 * _FUNCTION), bpf.store32(bpf.R10, function, bpf.R1)]
    code += _room(accounts_fd, function, bpf.R8)
    code += [bpf.move(bpf.R1, WORKER), bpf.store32(bpf.R10, worker, bpf.R1)]
    code += _room(accounts_fd, worker, bpf.R9)
    code += [bpf.map_address(bpf.R1, storage_fd), bpf.copy(bpf.R2, bpf.R6), *bpf.stack_address(bpf.R3, own)]
    code += [bpf.move(bpf.R4, 1), bpf.call(bpf.Helper.SK_STORAGE_GET), bpf.jump_if_equal(bpf.R0, 0, "refuse")]
    code += [bpf.move(bpf.R1, 1), *(bpf.atomic_add32(each, 4 * _OPEN, bpf.R1) for each in (bpf.R7, bpf.R8, bpf.R9))]
    code += ["allow", *bpf.leave(1), "refuse"]
    if refusal:
        code += [bpf.move(bpf.R1, -refusal), bpf.call(bpf.Helper.SET_RETVAL)]
    return [*code, *bpf.leave(0)]


def uncount(accounts_fd: int, storage_fd: int) -> bpf.Code:
    """When a socket's last descriptor is closed: take 1 from the accounts that are noted beside it."""
    code: list[bpf.Instruction | str] = [bpf.copy(bpf.R2, bpf.R1)]
    code += [bpf.map_address(bpf.R1, storage_fd), bpf.move(bpf.R3, 0), bpf.move(bpf.R4, 0)]
    code += [bpf.call(bpf.Helper.SK_STORAGE_GET), bpf.jump_if_equal(bpf.R0, 0, "done"), bpf.copy(bpf.R7, bpf.R0)]
    for number, index in enumerate(
        (bpf.load32(bpf.R1, bpf.R7, 0), bpf.load32(bpf.R1, bpf.R7, 4), bpf.move(bpf.R1, WORKER))
    ):
        code += [index, bpf.store32(bpf.R10, -4, bpf.R1), *bpf.lookup(accounts_fd, -4)]
        code += [bpf.jump_if_equal(bpf.R0, 0, f"next-{number}"), bpf.move(bpf.R1, -1)]
        code += [bpf.atomic_add32(bpf.R0, 4 * _OPEN, bpf.R1), f"next-{number}"]
    return [*code, "done", *bpf.leave(1)]


def _room(accounts_fd: int, index_at: int, account: int) -> bpf.Code:
    """Put the account whose index is on the stack into a register; go to "refuse" if it is full."""
    code = [*bpf.lookup(accounts_fd, index_at), bpf.jump_if_equal(bpf.R0, 0, "allow"), bpf.copy(account, bpf.R0)]
    code += [bpf.load32(bpf.R1, account, 4 * _OPEN), bpf.load32(bpf.R2, account, 4 * _MOST)]
    return [*code, bpf.jump_if_not_less(bpf.R1, bpf.R2, "refuse")]


def ephemeral_ports() -> int:
    """How many ports the kernel picks from where nobody names one (ip(7), ip_local_port_range)."""
    first, last = map(int, _PORT_RANGE.read_text().split())
    return last - first + 1


def _id_of(directory: str) -> bytes:
    """A cgroup's id: the inode number of its directory in v2, as bpf_get_current_cgroup_id gives it."""
    return struct.pack("=Q", os.stat(directory).st_ino)
