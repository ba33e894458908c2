"""What works beside a sandbox's start: its link goes in with INIT, and it is notified of the sandbox's end, twice."""

from __future__ import annotations

import socket
import uuid

import pytest

from sockd.base.errors import LaunchAborted
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.lifecycle import State
from tests.support.harness import MB, Harness, Running, read_answer

pytestmark = pytest.mark.root


class Beside:
    """A companion that records its calls."""

    reserved_bytes = 5 * MB

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.settimeout(5)
        self.reported: list[str] = []

    @property
    def link_fd(self) -> int:
        return self.theirs.fileno()

    def sandbox_ended(self) -> None:
        self.reported.append("ended")

    def sandbox_gone(self) -> None:
        self.reported.append("gone")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def hears(event: object) -> object:
    """What its link says, and whether it is there."""
    import os
    import sys

    fd = sys.modules["sockd_zygote.handlers.initscript_link"].offered
    return [os.read(fd, 100).decode(), os.get_inheritable(fd)] if fd else None


async def first_request(running: Running, beside: Beside) -> Reply:
    program = running._program
    running.sandbox.become(program, beside)
    beside.theirs.close()
    return await running.sandbox.request(uuid.uuid4().bytes, b"null")


@pytest.mark.parametrize("spare", [False, True])
def test_the_link_comes_next_to_init_and_goes_with_the_first_answer(harness: Harness, spare: bool) -> None:
    beside = Beside()
    try:
        running = harness.start(hears, spare=spare)
        beside.ours.send(b"hello")
        assert read_answer(harness.run(first_request(running, beside))) == ["hello", False]
        assert beside.ours.recv(1) == b""  # nobody else holds the other end
        assert running.answer() is None
        assert running.sandbox.reserved_bytes == (128 + 5) * MB and beside.reported == []
        running.destroy()
        assert beside.reported[0] == "ended"
        harness.settle()
        assert beside.reported == ["ended", "gone"]
    finally:
        beside.close()


def test_a_large_init_takes_the_link_with_it(harness: Harness) -> None:
    """More than the socket's buffer holds at once: the descriptor comes with the first piece, the rest as it is read."""
    beside = Beside()
    try:
        running = harness.start(hears, env={f"V{number}": "x" * 4000 for number in range(120)})
        beside.ours.send(b"all of it")
        assert read_answer(harness.run(first_request(running, beside))) == ["all of it", False]
    finally:
        beside.close()


def test_a_companion_of_a_sandbox_that_cannot_become_is_reported_as_well(harness: Harness) -> None:
    beside = Beside()
    running = harness.start(hears)
    beside.close()  # its descriptor is none: the INIT cannot be sent
    with pytest.raises(OSError):
        harness.run(first_request(running, beside))
    running.destroy()
    harness.settle()
    assert beside.reported == ["ended", "gone"]


def test_a_start_can_be_ended_with_an_error_and_only_while_somebody_waits(harness: Harness) -> None:
    beside = Beside()
    try:
        running = harness.start(
            "import os, sys\ndef handler(event): os.read(sys.modules['sockd_zygote.handlers.initscript_link'].offered, 1)"
        )
        error = LaunchAborted(3, "nothing to do")

        async def aborted() -> Reply:
            harness.loop.call_later(0.05, running.sandbox.conversation.end, error)
            return await first_request(running, beside)

        reply = harness.run(aborted())
        assert reply.error is error and running.sandbox.lifecycle.state is State.DEAD
        assert str(error) == "the initscript aborted the launch with status 3: nothing to do"
        harness.call(lambda: running.sandbox.conversation.end(error))
    finally:
        beside.close()


def test_ending_what_no_one_waits_for_does_nothing(harness: Harness) -> None:
    running = harness.start("def handler(event): return 1")
    assert running.answer() == 1
    harness.call(lambda: running.sandbox.conversation.end(LaunchAborted(1, "late")))
    assert running.answer() == 1
