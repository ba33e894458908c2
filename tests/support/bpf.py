"""An interpreter for seccomp's classic BPF: what the kernel would answer to one system call.

It reads `struct seccomp_data` as the kernel lays it out and knows the operations that seccomp accepts and we use.
Anything else is an AssertionError: a filter that needs more is no longer one that the kernel can cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack, unpack_from

X86_64 = 0xC000003E
KILL_PROCESS = 0x80000000


def strictest(programs: Iterable[bytes], number: int, *arguments: int, architecture: int = X86_64) -> int:
    """What comes of a process's filters, in the order of their installation: the action with the lowest value, and if
    there are several of these, the newest's (linux/seccomp.c)."""
    values = [run(program, number, *arguments, architecture=architecture) for program in programs]
    return min(reversed(values), key=lambda value: value & 0xFFFF0000 if value != KILL_PROCESS else 0)


def run(program: bytes, number: int, *arguments: int, architecture: int = X86_64) -> int:
    """The seccomp return value of `program` for the call `number(*arguments)`."""
    padded = (*arguments, *([0] * (6 - len(arguments))))
    data = pack("<IIQ6Q", number, architecture, 0, *padded)
    accumulator = place = 0
    while True:
        code, then, otherwise, k = unpack_from("<HBBI", program, 8 * place)
        place += 1
        if code == 0x20:
            (accumulator,) = unpack_from("<I", data, k)
        elif code == 0x54:
            accumulator &= k
        elif code == 0x15:
            place += then if accumulator == k else otherwise
        elif code == 0x35:
            place += then if accumulator >= k else otherwise
        elif code == 0x06:
            return int(k)
        else:
            raise AssertionError(f"instruction {place - 1}: operation {code:#x}")
