"""eBPF: a small assembler, and the bpf(2) calls that load a program, attach it to a cgroup and make a map.

Owns nothing: file descriptors and memory maps are the caller's. Opcodes and attributes are those of linux/bpf.h; a program is
a list of instructions in which a string is a label. There is no compiler and no BTF of the kernel, so only programs whose
context has a fixed layout (cgroup programs) can be written with it.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_BPF = 321
_MAP_CREATE, _MAP_UPDATE, _MAP_DELETE, _PROG_LOAD, _PROG_ATTACH, _BTF_LOAD = 0, 2, 3, 5, 8, 18
_ALLOW_MULTI = 2
"""A cgroup may have several programs of one kind; all of them must agree."""
_NO_PREALLOC, _CLONE, _MMAPABLE = 1, 1 << 9, 1 << 10
_LOG_BYTES = 1 << 16
_NAME = b"sockd"


class ProgramType(enum.IntEnum):
    """BPF_PROG_TYPE_*."""

    CGROUP_SOCK = 9
    SOCK_OPS = 13
    CGROUP_SOCK_ADDR = 18


class Attach(enum.IntEnum):
    """BPF_CGROUP_*: where in a cgroup's life of sockets a program is run."""

    INET_SOCK_CREATE = 2
    SOCK_OPS = 3
    INET4_BIND = 8
    INET6_BIND = 9
    INET4_POST_BIND = 12
    INET6_POST_BIND = 13
    INET_SOCK_RELEASE = 34


class MapType(enum.IntEnum):
    """BPF_MAP_TYPE_*."""

    HASH = 1
    ARRAY = 2
    SK_STORAGE = 24


class Helper(enum.IntEnum):
    """BPF_FUNC_*: functions of the kernel that a program may call."""

    MAP_LOOKUP_ELEM = 1
    GET_SOCKET_COOKIE = 46
    SOCK_OPS_CB_FLAGS_SET = 59
    GET_CURRENT_CGROUP_ID = 80
    SK_STORAGE_GET = 107
    GET_NETNS_COOKIE = 122
    SET_RETVAL = 187


R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)
"""R0: results; R1 to R5: arguments, lost in a call; R6 to R9: kept; R10: the end of the stack, read only."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `offset` may name the label to jump to."""

    code: int
    dst: int = 0
    src: int = 0
    offset: int | str = 0
    immediate: int = 0

    @property
    def slots(self) -> int:
        """How many places it takes: one, and two with an immediate of 64 bits."""
        return 2 if self.code == 0x18 else 1


Code = Sequence["Instruction | str"]


def move(dst: int, immediate: int) -> Instruction:
    """dst = immediate."""
    return Instruction(0xB7, dst, immediate=immediate)


def move64(dst: int, immediate: int) -> Instruction:
    """dst = immediate, of 64 bits."""
    return Instruction(0x18, dst, immediate=immediate)


def copy(dst: int, src: int) -> Instruction:
    """dst = src."""
    return Instruction(0xBF, dst, src)


def load32(dst: int, src: int, offset: int) -> Instruction:
    """dst = *(u32 *)(src + offset)."""
    return Instruction(0x61, dst, src, offset)


def load64(dst: int, src: int, offset: int) -> Instruction:
    """dst = *(u64 *)(src + offset)."""
    return Instruction(0x79, dst, src, offset)


def store32(dst: int, offset: int, src: int) -> Instruction:
    """*(u32 *)(dst + offset) = src."""
    return Instruction(0x63, dst, src, offset)


def store64(dst: int, offset: int, src: int) -> Instruction:
    """*(u64 *)(dst + offset) = src."""
    return Instruction(0x7B, dst, src, offset)


def add(dst: int, src: int) -> Instruction:
    """dst += src."""
    return Instruction(0x0F, dst, src)


def subtract32(dst: int, src: int) -> Instruction:
    """dst = (u32)(dst - src)."""
    return Instruction(0x1C, dst, src)


def atomic_add32(dst: int, offset: int, src: int) -> Instruction:
    """*(u32 *)(dst + offset) += src, in one step for all processors."""
    return Instruction(0xC3, dst, src, offset)


def jump_if_equal(register: int, immediate: int, label: str) -> Instruction:
    """Go to the label if register == immediate."""
    return Instruction(0x15, register, 0, label, immediate)


def jump_if_all_ones32(register: int, label: str) -> Instruction:
    """Go to the label if (u32)register == 0xFFFFFFFF."""
    return Instruction(0x16, register, 0, label, -1)


def jump_if_same(left: int, right: int, label: str) -> Instruction:
    """Go to the label if left == right, both registers."""
    return Instruction(0x1D, left, right, label)


def jump_if_not_less(left: int, right: int, label: str) -> Instruction:
    """Go to the label if left >= right, both registers, unsigned."""
    return Instruction(0x3D, left, right, label)


def jump(label: str) -> Instruction:
    """Go to the label."""
    return Instruction(0x05, offset=label)


def call(helper: Helper) -> Instruction:
    """R0 = helper(R1, ...)."""
    return Instruction(0x85, immediate=helper)


def leave(value: int) -> Code:
    """Return a constant."""
    return [move(R0, value), Instruction(0x95)]


def stack_address(dst: int, offset: int) -> Code:
    """dst = R10 + offset."""
    return [copy(dst, R10), Instruction(0x07, dst, immediate=offset)]


def map_address(dst: int, map_fd: int) -> Instruction:
    """dst = the map that this descriptor stands for while the program is loaded."""
    return Instruction(0x18, dst, 1, immediate=map_fd)


def lookup(map_fd: int, key_at: int) -> Code:
    """R0 = the address of the value whose key is on the stack at `key_at`, or 0."""
    return [map_address(R1, map_fd), *stack_address(R2, key_at), call(Helper.MAP_LOOKUP_ELEM)]


def assemble(code: Code) -> bytes:
    """The bytes of a program. Raises: KeyError: no such label."""
    labels, place = {}, 0
    for each in code:
        if isinstance(each, str):
            labels[each] = place
        else:
            place += each.slots
    program, place = bytearray(), 0
    for each in code:
        if isinstance(each, str):
            continue
        place += each.slots
        offset = labels[each.offset] - place if isinstance(each.offset, str) else each.offset
        low, high = each.immediate & 0xFFFFFFFF, each.immediate >> 32
        program += struct.pack("<BBhI", each.code, each.dst | each.src << 4, offset, low)
        program += struct.pack("<4xI", high) if each.slots == 2 else b""
    return bytes(program)


def load(kind: ProgramType, attach: Attach, code: Code) -> int:
    """Have the kernel verify and compile a program; its descriptor.

    Raises: OSError: not allowed, not in this kernel, or refused, with the verifier's last words."""
    program = assemble(code)
    text, license_ = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    head = (kind, len(program) // 8, ctypes.addressof(text), ctypes.addressof(license_))
    attributes = struct.pack("<IIQQIIQII16sII", *head, 1, _LOG_BYTES, ctypes.addressof(log), 0, 0, _NAME, 0, attach)
    try:
        return _bpf(_PROG_LOAD, attributes, f"load {attach.name}")
    except OSError as error:
        for line in log.value.decode(errors="replace").splitlines()[-3:]:
            error.add_note(line)
        raise


def attach_to_cgroup(directory_fd: int, program_fd: int, attach: Attach) -> None:
    """Run the program for all sockets made in this cgroup of v2 and below, until the cgroup is removed. Raises: OSError."""
    attributes = struct.pack("<IIIII", directory_fd, program_fd, attach, _ALLOW_MULTI, 0)
    _bpf(_PROG_ATTACH, attributes, f"attach {attach.name}")


def hash_map(key_bytes: int, value_bytes: int, most: int) -> int:
    """An empty map; its descriptor. Raises: OSError."""
    return _new_map(MapType.HASH, key_bytes, value_bytes, most, _NO_PREALLOC)


def shared_array(value_bytes: int, count: int) -> tuple[int, mmap.mmap]:
    """An array of zeros that this process reads and writes as memory; its descriptor and that memory. Raises: OSError."""
    fd = _new_map(MapType.ARRAY, 4, value_bytes, count, _MMAPABLE)
    try:
        return fd, mmap.mmap(fd, -(-value_bytes * count // mmap.PAGESIZE) * mmap.PAGESIZE)
    except BaseException:
        os.close(fd)
        raise


def socket_storage(value_bytes: int) -> int:
    """A map that holds a value beside each socket for as long as there is the socket; its descriptor. Raises: OSError.

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
    number = ctypes.c_long(_BPF)
    result = int(_syscall(number, ctypes.c_long(command), buffer, ctypes.c_long(len(attributes))))
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"bpf: {os.strerror(errno)}", subject)
    return result
