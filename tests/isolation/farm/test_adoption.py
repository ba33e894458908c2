"""A child of a Zygote with packages: whose it must be to be adopted, and what becomes of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sockd.isolation.farm.adoption import Adoption, NotItsChild, checked_child, move

pytestmark = pytest.mark.anyio


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that waits for the end of its stdin."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process


@pytest.fixture
def ours() -> Iterator[int]:
    """Our own pidfd."""
    fd = os.pidfd_open(os.getpid())
    yield fd
    os.close(fd)


@pytest.fixture
def its(child: subprocess.Popen[bytes]) -> Iterator[int]:
    """The child's pidfd."""
    fd = os.pidfd_open(child.pid)
    yield fd
    os.close(fd)


def test_a_living_child_is_known_by_its_pid(child: subprocess.Popen[bytes], ours: int, its: int) -> None:
    assert checked_child(its, ours) == child.pid


def test_no_one_else_is_taken_for_a_child(ours: int, its: int) -> None:
    first = os.pidfd_open(1)
    with ExitStack() as stack:
        stack.callback(os.close, first)
        for other in (ours, first):
            with pytest.raises(NotItsChild):
                checked_child(other, its)
        with pytest.raises(NotItsChild):
            checked_child(first, ours)


def test_what_is_no_process_or_is_gone_is_nobodys_child(child: subprocess.Popen[bytes], ours: int, its: int) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        with pytest.raises(NotItsChild):
            checked_child(null, ours)
    finally:
        os.close(null)
    child.kill()
    child.wait()
    with pytest.raises(NotItsChild):
        checked_child(its, ours)


@pytest.mark.parametrize("quick", [True, False])
async def test_it_goes_on_when_its_pid_has_been_written(
    child: subprocess.Popen[bytes], ours: int, its: int, tmp_path: Path, quick: bool
) -> None:
    files = [tmp_path / "first", tmp_path / "second"]
    adoption = Adoption()
    with ExitStack() as stack:
        stack.callback(adoption.close)
        procs = [os.open(file, os.O_CREAT | os.O_WRONLY) for file in files]
        for fd in procs:
            stack.callback(os.close, fd)
        await adoption.adopt(its, ours, procs, quick=quick)
        assert os.read(adoption.waiting, 10) == b"1"
    assert [file.read_text() for file in files] == [str(child.pid)] * 2


def test_a_stranger_is_written_nowhere_and_no_one_goes_on(ours: int, its: int, tmp_path: Path) -> None:
    waiting, go = os.pipe()
    file = os.open(tmp_path / "procs", os.O_CREAT | os.O_WRONLY)
    try:
        with pytest.raises(NotItsChild):
            move(ours, its, [file], go)
        os.set_blocking(waiting, False)
        with pytest.raises(BlockingIOError):
            os.read(waiting, 1)
    finally:
        for fd in (waiting, go, file):
            os.close(fd)
    assert (tmp_path / "procs").read_text() == ""
