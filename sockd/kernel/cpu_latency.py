"""How late a processor may wake: a request of PM QoS (/dev/cpu_dma_latency, Documentation/power/pm_qos_interface.rst).

An idle processor sleeps until there is something to run, and takes its time to wake: some 50 us as a virtual one, up to
hundreds in the deepest state of a real one. While anybody asks for no latency at all, idle ones spin instead, and asking wakes
those that sleep. That holds for all processors of the machine; who has work gets them as ever.

Owns the descriptor. The kernel takes the request back when it is closed, by whatever ends its process.
"""

from __future__ import annotations

import os
import struct
from typing import Self

DEVICE = "/dev/cpu_dma_latency"
ANY_US = 2_000_000_000
"""What asks for nothing: the kernel's own default (PM_QOS_CPU_LATENCY_DEFAULT_VALUE)."""

_NONE = struct.pack("i", 0)
_ANY = struct.pack("i", ANY_US)


class CpuLatency:
    """One request, which at first asks for nothing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls, path: str = DEVICE) -> Self:
        """Raises: OSError: the kernel has no such device, or we may not use it."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def forbid(self) -> None:
        """Wake all idle processors and let none sleep. It takes 40 us where one sleeps, 2 where none does (measured on 2)."""
        os.pwrite(self._fd, _NONE, 0)

    def allow(self) -> None:
        """Ask for nothing any more (1 us)."""
        os.pwrite(self._fd, _ANY, 0)

    def allowed_us(self) -> int:
        """What all requests of the machine allow together."""
        return int(struct.unpack("i", os.pread(self._fd, 4, 0))[0])

    def close(self) -> None:
        """Take the request back. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
