"""An assembler for eBPF: instructions as values, and the bytes of a program.

Pure. Opcodes and helpers are those of linux/bpf.h; a program is a list of instructions in which a string is a label. There is
no compiler and no BTF of the kernel, so only programs whose context has a fixed layout (cgroup programs) can be written.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass


class Helper(enum.IntEnum):
    """BPF_FUNC_*: functions of the kernel that a program may call."""

    MAP_LOOKUP_ELEM = 1
    GET_CURRENT_UID_GID = 15
    SKB_LOAD_BYTES = 26
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


def load8(dst: int, src: int, offset: int) -> Instruction:
    """dst = *(u8 *)(src + offset)."""
    return Instruction(0x71, dst, src, offset)


def load32(dst: int, src: int, offset: int) -> Instruction:
    """dst = *(u32 *)(src + offset)."""
    return Instruction(0x61, dst, src, offset)


def load64(dst: int, src: int, offset: int) -> Instruction:
    """dst = *(u64 *)(src + offset)."""
    return Instruction(0x79, dst, src, offset)


def store16(dst: int, offset: int, src: int) -> Instruction:
    """*(u16 *)(dst + offset) = src."""
    return Instruction(0x6B, dst, src, offset)


def store32(dst: int, offset: int, src: int) -> Instruction:
    """*(u32 *)(dst + offset) = src."""
    return Instruction(0x63, dst, src, offset)


def store64(dst: int, offset: int, src: int) -> Instruction:
    """*(u64 *)(dst + offset) = src."""
    return Instruction(0x7B, dst, src, offset)


def add(dst: int, src: int) -> Instruction:
    """dst += src."""
    return Instruction(0x0F, dst, src)


def add_constant(dst: int, immediate: int) -> Instruction:
    """dst += immediate."""
    return Instruction(0x07, dst, immediate=immediate)


def mask(dst: int, immediate: int) -> Instruction:
    """dst &= immediate."""
    return Instruction(0x57, dst, immediate=immediate)


def shift_left(dst: int, bits: int) -> Instruction:
    """dst <<= bits."""
    return Instruction(0x67, dst, immediate=bits)


def shift_right(dst: int, bits: int) -> Instruction:
    """dst >>= bits, unsigned."""
    return Instruction(0x77, dst, immediate=bits)


def subtract32(dst: int, src: int) -> Instruction:
    """dst = (u32)(dst - src)."""
    return Instruction(0x1C, dst, src)


def atomic_add32(dst: int, offset: int, src: int) -> Instruction:
    """*(u32 *)(dst + offset) += src, in one step for all processors."""
    return Instruction(0xC3, dst, src, offset)


def jump_if_equal(register: int, immediate: int, label: str) -> Instruction:
    """Go to the label if register == immediate."""
    return Instruction(0x15, register, 0, label, immediate)


def jump_if_not_equal(register: int, immediate: int, label: str) -> Instruction:
    """Go to the label if register != immediate."""
    return Instruction(0x55, register, 0, label, immediate)


def jump_if_all_ones32(register: int, label: str) -> Instruction:
    """Go to the label if (u32)register == 0xFFFFFFFF."""
    return Instruction(0x16, register, 0, label, -1)


def jump_if_same(left: int, right: int, label: str) -> Instruction:
    """Go to the label if left == right, both registers."""
    return Instruction(0x1D, left, right, label)


def jump_if_not_less(left: int, right: int, label: str) -> Instruction:
    """Go to the label if left >= right, both registers, unsigned."""
    return Instruction(0x3D, left, right, label)


def jump_if_greater(left: int, right: int, label: str) -> Instruction:
    """Go to the label if left > right, both registers, unsigned."""
    return Instruction(0x2D, left, right, label)


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
    return [copy(dst, R10), add_constant(dst, offset)]


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
