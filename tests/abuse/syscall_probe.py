"""Makes each call of a list in a child of its own and says what came of it. Deployed as a function; see test_syscalls.py.

A call is [number, arguments, seconds after which it blocks]; without arguments all six are -1, which no call takes for good. What
is reported: "EPERM" and "ENOSYS" as they are, since a filter says these; "killed by SIGSYS" and the like; "ends", when it ended
the process in order; "blocks"; the errno's name for everything else, or "ok".
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from typing import Any

from prelude import in_child, refusal  # type: ignore[import-not-found]

FORKS = {57: b"\xb8\x39\0\0\0", 58: b"\xb8\x3a\0\0\0"}
"""mov eax, number: fork and vfork are made by code whose child ends at once, as it shares the parent's stack."""
TAIL = bytes.fromhex("0f05 85c0 7509 31ff b83c000000 0f05 c3")
"""syscall; test eax, eax; jnz done; xor edi, edi; mov eax, exit; syscall; done: ret"""
INT80 = bytes.fromhex("b814000000 cd80 c3")
"""mov eax, 20 (getpid of i386); int 0x80; ret"""


def machine_code(code: bytes) -> int:
    """Run it, and return eax."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


def reported(result: int) -> str:
    return "ok" if result >= 0 else os.strerror(-result)


def try_call(number: int, arguments: list[int]) -> str:
    if number in FORKS:
        return reported(machine_code(FORKS[number] + TAIL))
    return str(refusal(number, *(arguments or [-1] * 6)))


def probe(number: int, arguments: list[int], seconds: float) -> str:
    return str(in_child(lambda: try_call(number, arguments), seconds=seconds))


def f(event: Any) -> Any:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if event == "int80":
        return in_child(lambda: machine_code(INT80))
    return [probe(*call) for call in event]
