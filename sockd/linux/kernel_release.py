"""The kernel's release, for what it does not tell in another way (uname(2))."""

from __future__ import annotations

import os


def kernel_release() -> tuple[int, int]:
    """(6, 18) for Linux 6.18.44-fc."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)
