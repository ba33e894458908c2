"""Ports of the host that nothing in a cgroup may bind, on any address, or that one uid alone may: eBPF programs at bind(2) of
IPv4 and IPv6.

Owns the map of the ports. The programs belong to the cgroup: they hold until it is removed, also after the daemon was killed, so
there is no moment in which a sandbox outlives them. The kernel runs those of the cgroup that a socket was *made* in, so they hold
for every process that binds it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Mapping

from sockd.linux.bpf import assembler as asm
from sockd.linux.bpf import bpf

_USER_PORT = 24
"""Offset in struct bpf_sock_addr, the context: the port that is asked for, in network byte order."""
_SO_NETNS_COOKIE = 71
_MOST_PORTS = 1024
_NO_UID = 0xFFFF_FFFF
"""No process has this uid: a port that it owns is bound by none."""


class PortGuard:
    """`attach` makes one; the constructor makes one that guards nothing, for hosts that cannot."""

    def __init__(self, ports_fd: int = -1) -> None:
        self._ports_fd = ports_fd
        self._held: Counter[int] = Counter()

    @classmethod
    def attach(cls, directory: str) -> PortGuard:
        """Guard a cgroup of v2 and all below it; it holds no port yet.

        Raises: OSError: this kernel has no cgroup BPF (CONFIG_CGROUP_BPF), or we may not use it (CAP_BPF, CAP_NET_ADMIN)."""
        guard = cls(bpf.hash_map(4, 4, _MOST_PORTS))
        try:
            attach_program(
                directory,
                bpf.ProgramType.CGROUP_SOCK_ADDR,
                {
                    at: refuse_ports(guard._ports_fd, netns_cookie())
                    for at in (bpf.Attach.INET4_BIND, bpf.Attach.INET6_BIND)
                },
            )
        except BaseException:
            guard.close()
            raise
        return guard

    @property
    def guards(self) -> bool:
        """Whether ports are refused at all: this kernel can do it."""
        return self._ports_fd >= 0

    def hold(self, port: int) -> None:
        """No process in the cgroup can bind this port from now on; one that has bound it already keeps it. Raises: OSError."""
        self._held[port] += 1
        if self._ports_fd >= 0:
            bpf.update(self._ports_fd, _key(port), _owned_by(_NO_UID))

    def grant(self, port: int, uid: int) -> None:
        """In the cgroup only processes of this uid, as the host sees it, can bind this port from now on.

        Raises: OSError, with EADDRINUSE: the port is held or granted already."""
        if self._held[port]:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        bpf.update(self._ports_fd, _key(port), _owned_by(uid))
        self._held[port] = 1

    def release(self, port: int) -> None:
        """Undo one `hold`, or a `grant`."""
        self._held[port] -= 1
        if self._held[port] == 0:
            del self._held[port]
            if self._ports_fd >= 0:
                with contextlib.suppress(FileNotFoundError):
                    bpf.delete(self._ports_fd, _key(port))

    def close(self) -> None:
        """Let go of the map; what the programs hold they go on holding, until the cgroup is removed."""
        fd, self._ports_fd = self._ports_fd, -1
        if fd >= 0:
            os.close(fd)


def refuse_ports(ports_fd: int, netns_cookie: int) -> asm.Code:
    """Refuse with EPERM to bind what is in the map to all but the uid that the map names, in one network namespace: another has
    ports of its own. Port 0, for which the kernel picks one that is free, never is in the map."""
    return [
        asm.copy(asm.R6, asm.R1),
        asm.load32(asm.R1, asm.R6, _USER_PORT),
        asm.store32(asm.R10, -4, asm.R1),
        *asm.lookup(ports_fd, -4),
        asm.jump_if_equal(asm.R0, 0, "allow"),
        asm.load32(asm.R7, asm.R0, 0),
        asm.call(asm.Helper.GET_CURRENT_UID_GID),
        asm.shift_left(asm.R0, 32),
        asm.shift_right(asm.R0, 32),
        asm.jump_if_same(asm.R0, asm.R7, "allow"),
        asm.copy(asm.R1, asm.R6),
        asm.call(asm.Helper.GET_NETNS_COOKIE),
        asm.move64(asm.R1, netns_cookie),
        asm.jump_if_same(asm.R0, asm.R1, "refuse"),
        "allow",
        *asm.leave(1),
        "refuse",
        *asm.leave(0),
    ]


def attach_program(directory: str, kind: bpf.ProgramType, programs: Mapping[bpf.Attach, asm.Code]) -> None:
    """Load programs and attach them to a cgroup, whose they are then. Raises: OSError; those before stay attached."""
    cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for at, code in programs.items():
            program = bpf.load(kind, at, code)
            try:
                bpf.attach_to_cgroup(cgroup, program, at)
            finally:
                os.close(program)
    finally:
        os.close(cgroup)


def netns_cookie() -> int:
    """The number of our network namespace, as the kernel's programs know it (Linux 5.14). Raises: OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)


def _owned_by(uid: int) -> bytes:
    return struct.pack("=I", uid)


def _key(port: int) -> bytes:
    """As the context has it: 16 bits in network byte order at the beginning of 32."""
    return struct.pack("=I", socket.htons(port))
