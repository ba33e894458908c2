"""The guard of event loops: code that closes a descriptor that a loop watches fails at once, with the place where it was
watched."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.watched_descriptors import SITE, STATUS, Guard, WatchedDescriptorClosed

CLOSES: dict[str, Callable[[socket.socket, socket.socket], object]] = {
    "os.close": lambda watched, other: os.close(watched.detach()),
    "os.dup2": lambda watched, other: os.dup2(other.fileno(), watched.fileno()),
    "socket.close": lambda watched, other: watched.close(),
}


@pytest.mark.anyio
@pytest.mark.parametrize("direction", ["reader", "writer"])
@pytest.mark.parametrize("how", CLOSES)
async def test_a_close_of_a_watched_descriptor_raises(loop_guard: Guard, how: str, direction: str) -> None:
    loop = asyncio.get_running_loop()
    watched, other = socket.socketpair()
    number = watched.fileno()
    with watched, other:
        getattr(loop, f"add_{direction}")(number, print)
        with pytest.raises(WatchedDescriptorClosed, match=f"(?s)descriptor {number} .*add_{direction} from"):
            CLOSES[how](watched, other)
        getattr(loop, f"remove_{direction}")(number)
        if watched.fileno() < 0:  # os.close has its number, and has not closed it
            os.close(number)
    assert len(loop_guard.take_violations()) == 1


@pytest.mark.anyio
async def test_what_is_no_longer_watched_may_be_closed() -> None:
    loop = asyncio.get_running_loop()
    one, other = socket.socketpair()
    with other:
        loop.add_reader(one.fileno(), print)
        loop.add_writer(one.fileno(), print)
        loop.remove_reader(one.fileno())
        loop.remove_writer(one.fileno())
        one.close()


def test_a_loop_that_is_closed_watches_nothing() -> None:
    loop = asyncio.new_event_loop()
    one, other = socket.socketpair()
    with one, other:
        loop.add_reader(one.fileno(), print)
        loop.close()


PROGRAM = """
import asyncio, os, sys
import uvloop
async def main():
    fd = os.eventfd(0)
    asyncio.get_running_loop().add_reader(fd, print)
    os.close(fd)
{run}(main())
"""


@pytest.mark.parametrize("run", ["uvloop.run", "asyncio.run"])
def test_a_process_that_a_test_starts_ends_with_both_stacks(run: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(run=run)], capture_output=True, text=True)
    assert done.returncode == STATUS, done
    assert "is closed while an event loop watches it" in done.stderr
    assert "watched with add_reader from:" in done.stderr


BLIND_CLOSE = """
import asyncio, select
import uvloop
async def main():
    watched = select.epoll()
    fd = watched.fileno()
    asyncio.get_running_loop().add_reader(fd, print)
    watched.close()
    asyncio.get_running_loop().remove_reader(fd)
asyncio.run(main())
"""


def test_a_close_that_python_does_not_see_is_found_when_the_watch_ends() -> None:
    done = subprocess.run([sys.executable, "-c", BLIND_CLOSE], capture_output=True, text=True)
    assert done.returncode == STATUS, done
    assert "was closed before this while an event loop watches it" in done.stderr


def test_a_process_without_a_loop_loads_no_guard() -> None:
    code = "import sys; print('sitecustomize' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert str(SITE) in os.environ["PYTHONPATH"]
    assert done.stdout.split() == ["True", "False"]
