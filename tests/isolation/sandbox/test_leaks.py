"""The n-th-call sweep: each system call of a sandbox's or a Zygote's making fails in turn, and nothing is left."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from sockd.base.errors import NoCapacity, SandboxDied, SandboxFailed
from sockd.isolation.farm.imported import ImportRequest
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.linux import _procfs, syscalls
from sockd.linux.processes import pidfds
from tests.support.harness import MB, Harness
from tests.support.ledger import Ledger

pytestmark = [pytest.mark.root, pytest.mark.parametrize("whole_harness", ["auto", (6, 1)], indirect=True)]

NthCall = Callable[..., Iterator[int]]

CALLS: list[tuple[ModuleType, str, int]] = [
    (syscalls, "open_tree", errno.EMFILE),
    (syscalls, "move_mount", errno.EIO),
    (syscalls, "mount_setattr", errno.EIO),
    (syscalls, "new_filesystem", errno.EMFILE),
    (syscalls, "unshare", errno.ENOMEM),
    (_procfs, "ask", errno.ESRCH),
    (_procfs, "ask", errno.EMFILE),
    (pidfds, "pid_namespace", errno.ESRCH),
    (pidfds, "pid_namespace", errno.EMFILE),
    (socket, "socketpair", errno.EMFILE),
    (os, "pipe", errno.EMFILE),
    (os, "open", errno.EMFILE),
    (os, "mkdir", errno.ENOSPC),
    (os, "chown", errno.EPERM),
    (os, "pwrite", errno.EIO),
    (os, "pread", errno.EIO),
    (os, "set_blocking", errno.EIO),
    (fcntl, "fcntl", errno.EPERM),
]
CASES = [
    pytest.param(*case, id=f"{case[0].__name__.rpartition('.')[2]}.{case[1]}-{errno.errorcode[case[2]]}")
    for case in CALLS
]

ALLOWED = (OSError, SandboxFailed, SandboxDied, NoCapacity)
"""What the owners of a failed sandbox expect and handle."""


async def use(harness: Harness, program: Program, zygote: Zygote, *, spare: bool) -> bytes:
    """A sandbox's whole life: fork, become, request, pause, unpause, request, destroy."""
    sandbox: Sandbox | None = None
    try:
        sandbox = await harness.fork(program.limits, zygote=zygote, program=None if spare else program)
        if spare:
            sandbox.process.adopt(await harness.reserve(program.limits))
        sandbox.become(program)
        first = await sandbox.request(bytes(16), b"1")
        if first.error:
            raise first.error
        sandbox.pause()
        await sandbox.unpause()
        second = await sandbox.request(bytes(16), b"2")
        if second.error:
            raise second.error
        return first.body + second.body
    finally:
        if sandbox is not None:
            sandbox.destroy()


def attempt(harness: Harness, work: Callable[[], Any]) -> Any:
    """The work's result, or its error if that is one of those allowed; all is settled either way."""
    try:
        return harness.run(work())
    except ALLOWED as error:
        return error
    finally:
        harness.run(harness._settled())


INTACT = {(module, name): getattr(module, name) for module, name, _ in CALLS}


@contextmanager
def intact(module: ModuleType, name: str) -> Iterator[None]:
    """The call as it was before the sweep: the ledger makes some of them itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, INTACT[module, name])
        yield


@pytest.mark.parametrize("spare", [False, True], ids=["", "spare"])
@pytest.mark.parametrize(("module", "name", "error"), CASES)
def test_a_sandbox_that_cannot_be_made_leaves_nothing(
    harness: Harness, ledger: Ledger, nth_call: NthCall, module: ModuleType, name: str, error: int, spare: bool
) -> None:
    program = harness.program("def handler(event): return event\n", tmp_bytes=4 * MB)
    program.code_fd  # noqa: B018 - opened once, for all its sandboxes
    ledger = Ledger()
    for n in nth_call(module, name, error=error):
        outcome = attempt(harness, lambda: use(harness, program, harness.root, spare=spare))
        assert harness.budget.used == 0, n
        with intact(module, name):
            ledger.check()
    assert outcome == b"12"


@pytest.mark.parametrize(("module", "name", "error"), CASES)
def test_a_zygote_that_cannot_be_made_leaves_nothing(
    harness: Harness, nth_call: NthCall, module: ModuleType, name: str, error: int
) -> None:
    harness.add_package("p", {"some_package.py": "x = 1\n"})
    ledger = Ledger()
    free = harness.root.uids._free_children
    mine = 1  # the walled root's

    async def spawn_and_import() -> str:
        zygote = await harness.root.spawn(limit_bytes=256 * MB, deadline_s=5, on_end=harness._note_end)
        try:
            request = ImportRequest(paths=["/packages/p"], modules=["some_package"])
            root = await harness.assembly.create_for_imports(harness.limits(), zygote.pidfd)
            try:
                await zygote.import_modules(request, root.fd, deadline_s=5)
            finally:
                root.close()
            return "served"
        finally:
            zygote.close()

    for n in nth_call(module, name, error=error):
        outcome = attempt(harness, spawn_and_import)
        with intact(module, name):
            ledger.check()
        assert len(free) == harness.root.uids._next_child - mine, n  # every block for a child has come back
        assert harness.root.alive
    assert outcome == "served"


@pytest.mark.parametrize(("module", "name", "error"), CASES)
def test_a_root_zygote_that_cannot_be_made_leaves_nothing(
    harness: Harness, nth_call: NthCall, module: ModuleType, name: str, error: int
) -> None:
    ledger = Ledger()

    async def make() -> str:
        root = await harness.new_root()
        root.close()
        return "made"

    for n in nth_call(module, name, error=error):
        outcome = attempt(harness, make)
        with intact(module, name):
            ledger.check()
        assert "farm" not in harness.ended, n
    assert outcome == "made"


def test_a_fork_that_is_cancelled_anywhere_leaves_nothing(harness: Harness, ledger: Ledger) -> None:
    program = harness.program("def handler(event): return event\n")
    program.code_fd  # noqa: B018
    ledger = Ledger()

    async def cancelled_after(turns: int, spare: bool) -> bool:
        task = asyncio.create_task(use(harness, program, harness.root, spare=spare))
        for _ in range(turns):
            await asyncio.sleep(0)
            if task.done():
                break
        done = task.done()
        task.cancel()
        await asyncio.wait([task])
        return done

    for spare in (False, True):
        for turns in [*range(1, 12), *range(12, 200, 17)]:
            harness.run(cancelled_after(turns, spare))
            harness.run(harness._settled())
            # The Zygote may have been asked already: the next one queues behind it.
            assert harness.run(use(harness, program, harness.root, spare=spare)) == b"12"
            harness.run(harness._settled())
            assert harness.budget.used == 0
            ledger.check()


def test_a_sandbox_that_is_destroyed_at_any_moment_leaves_nothing(harness: Harness) -> None:
    program = harness.program("import threading\ndef handler(event): threading.Event().wait(0.01)\n")
    program.code_fd  # noqa: B018
    ledger = Ledger()

    async def destroyed_after(turns: int) -> None:
        sandbox = await harness.fork(program.limits, program=program)

        async def ask() -> Reply:
            sandbox.become(program)
            return await sandbox.request(bytes(16), b"1")

        asking = asyncio.create_task(ask())
        for _ in range(turns):
            await asyncio.sleep(0)
        sandbox.destroy()
        sandbox.destroy()
        reply = await asking
        assert reply.error is None or reply.error.message == "the sandbox was destroyed"

    for turns in (1, 2, 5, 50, 300):
        harness.run(destroyed_after(turns))
        harness.run(harness._settled())
        assert harness.budget.used == 0
        ledger.check()


def test_a_zygote_killed_at_any_moment_of_a_fork_leaves_nothing(harness: Harness) -> None:
    program = harness.program("def handler(event): return event\n")
    program.code_fd  # noqa: B018
    ledger = Ledger()

    async def killed_after(turns: int) -> Any:
        zygote = await harness.root.spawn(limit_bytes=256 * MB, deadline_s=5, on_end=harness._note_end)
        task = asyncio.create_task(use(harness, program, zygote, spare=False))
        for _ in range(turns):
            await asyncio.sleep(0)
        zygote.close()
        try:
            return await task
        except ALLOWED as error:
            return error

    for turns in (1, 2, 3, 5, 10, 30, 100, 1000):
        harness.run(killed_after(turns))
        harness.run(harness._settled())
        assert harness.budget.used == 0
        ledger.check()


def test_a_zygote_that_lies_about_its_fork_costs_nothing(harness: Harness) -> None:
    """A Zygote answers a fork with an fd that is no pidfd, or with the pidfd of another process."""
    source = """
    import os, sys, threading
    def lie():
        import socket, sockd_zygote._native as native, sockd_zygote.linux as linux, sockd_zygote.protocol as protocol
        control = socket.socket(fileno=3)
        def serve(fd):
            while True:
                data, fds = linux.receive(control, bytearray(1000), 16)
                if not data:
                    os._exit(0)
                answer = dict(op="forked", id=protocol.FORK.unpack_from(data)[-1], pid=1)
                linux.send(control, protocol.encode_control(answer), ({fd},))
        native.serve = serve
    lie()
    """
    program = harness.program("def handler(event): return event\n")
    program.code_fd  # noqa: B018
    for number, fd in enumerate(
        ["os.open('/dev/null', 0)", "os.pipe()[0]", "os.pidfd_open(1)", "os.pidfd_open(os.getpid())"]
    ):
        harness.add_package(f"liar{number}", {f"liar{number}.py": source.format(fd=fd)})
        zygote = harness.spawn(modules=[f"liar{number}"])
        outcome = attempt(
            harness,
            lambda zygote=zygote: asyncio.wait_for(use(harness, program, zygote, spare=False), 5),  # type: ignore[misc]
        )
        assert isinstance(outcome, Exception), outcome
        assert harness.budget.used == 0
        assert "farm" not in harness.ended
    assert harness.answer("def handler(event): return event\n", 7) == 7
