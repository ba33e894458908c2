"""bpf(2): loads eBPF programs (`bpf_assembler`), attaches them to a cgroup, and makes their maps.

Owns nothing: file descriptors and memory maps are the caller's. Attributes are those of linux/bpf.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import mmap
import os
import struct

from sockd.linux import signals
from sockd.linux.bpf.assembler import Code, assemble
from sockd.linux.syscall_table import NUMBERS

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_MAP_CREATE, _MAP_UPDATE, _MAP_DELETE, _PROG_LOAD, _PROG_ATTACH, _BTF_LOAD = 0, 2, 3, 5, 8, 18
_ALLOW_MULTI = 2
"""A cgroup may have several programs of one kind; all of them must agree."""
_STRICT_ALIGNMENT = 1
"""BPF_F_STRICT_ALIGNMENT: the verifier refuses everywhere what kernels without unaligned access refuse (user-mode-linux)."""
_NO_PREALLOC, _CLONE, _MMAPABLE = 1, 1 << 9, 1 << 10
_LOG_BYTES = 1 << 16
_TRIES = 5
"""The verifier also gives up, with EAGAIN, where the kernel has other work for the thread. libbpf tries as often."""
_NAME = b"sockd"


class ProgramType(enum.IntEnum):
    """BPF_PROG_TYPE_*."""

    CGROUP_SKB = 8
    CGROUP_SOCK = 9
    SOCK_OPS = 13
    CGROUP_SOCK_ADDR = 18
    CGROUP_SOCKOPT = 25


class Attach(enum.IntEnum):
    """BPF_CGROUP_*: where in a cgroup's life of sockets a program is run."""

    INET_EGRESS = 1
    INET_SOCK_CREATE = 2
    SOCK_OPS = 3
    INET4_BIND = 8
    INET6_BIND = 9
    INET4_CONNECT = 10
    INET6_CONNECT = 11
    INET4_POST_BIND = 12
    INET6_POST_BIND = 13
    UDP4_SENDMSG = 14
    UDP6_SENDMSG = 15
    GETSOCKOPT = 21
    INET_SOCK_RELEASE = 34
    UNIX_CONNECT = 49
    UNIX_SENDMSG = 50


class MapType(enum.IntEnum):
    """BPF_MAP_TYPE_*."""

    HASH = 1
    ARRAY = 2
    LPM_TRIE = 11
    SK_STORAGE = 24


def load(kind: ProgramType, attach: Attach, code: Code) -> int:
    """Have the kernel verify and compile a program; its descriptor.

    Raises: OSError: not allowed, not in this kernel, or refused, with the verifier's last words."""
    program = assemble(code)
    text, license_ = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    head = (kind, len(program) // 8, ctypes.addressof(text), ctypes.addressof(license_))
    attributes = struct.pack("<IIQQIIQII", *head, 1, _LOG_BYTES, ctypes.addressof(log), 0, _STRICT_ALIGNMENT)
    attributes += struct.pack("<16sII", _NAME, 0, attach)
    try:
        with signals.blocked():  # the verifier gives up at a signal, with EAGAIN
            return _load(attributes, f"load {attach.name}")
    except OSError as error:
        for line in log.value.decode(errors="replace").splitlines()[-3:]:
            error.add_note(line)
        raise


def _load(attributes: bytes, subject: str) -> int:
    for _ in range(_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            return _bpf(_PROG_LOAD, attributes, subject)
    return _bpf(_PROG_LOAD, attributes, subject)


def attach_to_cgroup(directory_fd: int, program_fd: int, attach: Attach) -> None:
    """Run the program for all sockets made in this cgroup of v2 and below, until the cgroup is removed. Raises: OSError."""
    attributes = struct.pack("<IIIII", directory_fd, program_fd, attach, _ALLOW_MULTI, 0)
    _bpf(_PROG_ATTACH, attributes, f"attach {attach.name}")


def hash_map(key_bytes: int, value_bytes: int, most: int) -> int:
    """An empty map; its descriptor. Raises: OSError."""
    return _new_map(MapType.HASH, key_bytes, value_bytes, most, _NO_PREALLOC)


def prefix_map(key_bytes: int, value_bytes: int, most: int) -> int:
    """An empty map that finds the longest prefix of a key; its descriptor. A prefix' key is its bits as u32, and the bytes.

    Raises: OSError."""
    return _new_map(MapType.LPM_TRIE, 4 + key_bytes, value_bytes, most, _NO_PREALLOC)


def shared_array(value_bytes: int, count: int) -> tuple[int, mmap.mmap]:
    """An array of zeros that this process reads and writes as memory; its descriptor and that memory. Raises: OSError."""
    fd = _new_map(MapType.ARRAY, 4, value_bytes, count, _MMAPABLE)
    try:
        return fd, mmap.mmap(fd, -(-value_bytes * count // mmap.PAGESIZE) * mmap.PAGESIZE)
    except BaseException:
        os.close(fd)
        raise


def socket_storage(value_bytes: int) -> int:
    """A map that holds a value with each socket for as long as there is the socket; its descriptor. Raises: OSError.

    What a listener accepts begins with a copy of the listener's.
    The kernel wants to know the types of its keys and values (BTF); it gets an integer for both, as it uses them for
    nothing but printing."""
    integer = struct.pack("<IIII", 1, 1 << 24, 4, 32)
    names = b"\0u32\0"
    array = struct.pack("<IIIIII", 0, 3 << 24, 0, 1, 1, value_bytes // 4)
    types = integer + array
    btf = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names)) + types + names
    blob = ctypes.create_string_buffer(btf, len(btf))
    btf_fd = _bpf(_BTF_LOAD, struct.pack("<QQIIII", ctypes.addressof(blob), 0, len(btf), 0, 0, 0), "load types")
    try:
        return _new_map(MapType.SK_STORAGE, 4, value_bytes, 0, _NO_PREALLOC | _CLONE, (btf_fd, 1, 2))
    finally:
        os.close(btf_fd)


def update(map_fd: int, key: bytes, value: bytes) -> None:
    """Put a value into a map. Raises: OSError E2BIG: it is full."""
    _with_element(_MAP_UPDATE, map_fd, key, value)


def delete(map_fd: int, key: bytes) -> None:
    """Take a value out of a map. Raises: FileNotFoundError, OSError."""
    _with_element(_MAP_DELETE, map_fd, key, b"")


def _with_element(command: int, map_fd: int, key: bytes, value: bytes) -> None:
    keys, values = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value, len(value) or 1)
    value_at = ctypes.addressof(values) if value else 0  # a deletion has none, and what it has not must be zero
    attributes = struct.pack("<I4xQQQ", map_fd, ctypes.addressof(keys), value_at, 0)
    _bpf(command, attributes, "map")


def _new_map(
    kind: MapType, key_bytes: int, value_bytes: int, most: int, flags: int, btf: tuple[int, int, int] = (0, 0, 0)
) -> int:
    attributes = struct.pack("<IIIIIII16sIIII", kind, key_bytes, value_bytes, most, flags, 0, 0, _NAME, 0, *btf)
    return _bpf(_MAP_CREATE, attributes, f"map {kind.name}")


def _bpf(command: int, attributes: bytes, subject: str) -> int:
    # SAFETY: the kernel reads `attributes` only during the call, and the caller keeps alive what its addresses point to.
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    number = ctypes.c_long(NUMBERS["bpf"])
    result = int(_syscall(number, ctypes.c_long(command), buffer, ctypes.c_long(len(attributes))))
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"bpf: {os.strerror(errno)}", subject)
    return result
