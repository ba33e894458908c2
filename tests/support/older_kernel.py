"""The whole suite as on an older kernel: `SOCKD_KERNEL=6.1 make test` has each worker take the ways of that one.

Tests that name a kernel, or a way, are as ever.
"""

from __future__ import annotations

import os

import pytest

KERNEL = os.environ.get("SOCKD_KERNEL", "")


def release() -> tuple[int, int] | None:
    """The kernel's number, or None: the host's own."""
    major, _, minor = KERNEL.partition(".")
    return (int(major), int(minor)) if KERNEL else None


def with_kernel(config: str) -> str:
    """A worker's configuration, with the kernel in it if it names neither that nor the way of its roots."""
    if not KERNEL or "\nkernel = " in config or "\nroots = " in config:
        return config
    line = f'kernel = "{KERNEL}"\n'
    return (
        config.replace("[sandbox]\n", f"[sandbox]\n{line}", 1)
        if "[sandbox]\n" in config
        else f"{config}\n[sandbox]\n{line}"
    )


def kernel_paths() -> list[object]:
    """Configurations for tests that run on each way of a feature: those of the host, or of `SOCKD_KERNEL`, and of Linux 6.1."""
    own = pytest.param("", id=KERNEL or "newest")
    return [own] if KERNEL else [own, pytest.param('[sandbox]\nkernel = "6.1"\n', id="6.1")]
