"""Whether reads of images outlive an end of the process that serves them, on this kernel."""

from __future__ import annotations

import functools

import pytest

from sockd.images.agent_keeper.fuse_mount import ENDS, FuseMount
from tests.support.older_kernel import release

NO_RESEND = "the kernel sends no reads again (FUSE_HAS_RESEND, Linux 6.9)"


@functools.cache
def can_resend() -> bool:
    """Whether this kernel sends what an ended server has read to the next one. Raises: OSError: there is no FUSE."""
    mount = FuseMount.open(threads=1)
    mount.close()
    return mount.can_resend


@pytest.fixture
def resends() -> None:
    """Skip the test where an agent's end is the end of reads."""
    if not can_resend():
        pytest.skip(NO_RESEND)


def workers_resend() -> bool:
    """As `can_resend`, of workers, which take the ways of `SOCKD_KERNEL`."""
    return can_resend() and ((kernel := release()) is None or kernel >= ENDS.ways[0].since)


@pytest.fixture
def worker_resends() -> None:
    """Skip the test where an agent's end is the end of a worker's reads."""
    if not workers_resend():
        pytest.skip(f"{NO_RESEND}, or workers take the ways of such a kernel")
