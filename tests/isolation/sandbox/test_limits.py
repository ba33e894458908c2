"""What a sandbox may use, and what becomes of one that wants more: memory, processes, time, answers, output."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import functools
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from sockd.base.errors import OutOfMemory, ResponseTooLarge, SandboxDied, TimedOut
from sockd.isolation.sandbox.deadline import Deadline
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.output import PIPE_BYTES
from sockd.linux.mounts import owned
from sockd.linux.processes.pidfds import wait_exited
from tests.support.fake_clock import FakeClock, FakeTimer
from tests.support.harness import MAX_ANSWER_BYTES, MB, Harness, Running, read_answer

pytestmark = pytest.mark.root

TIMEOUT_S = 0.3
LATEST_S = 1.0
"""By when a sandbox must be dead after its deadline. The aim is 0.1 s; the rest is for a busy machine."""
TRIES = 3
"""Tries, of which the best counts: a machine that stood still says nothing of the deadline."""


def hog(event: Any) -> Any:
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


def hang(event: Any) -> Any:
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    while True:
        pass


@pytest.mark.parametrize("spare", [False, True])
def test_a_memory_hog_is_reported_with_limit_and_peak(harness: Harness, spare: bool) -> None:
    running = harness.start(hog, memory_bytes=48 * MB, spare=spare)
    error = running.request().error
    assert isinstance(error, OutOfMemory), error
    assert error.limit_bytes == 48 * MB
    assert 40 * MB < error.peak_bytes <= 48 * MB
    assert running.dead


def test_memory_taken_by_tmp_counts(harness: Harness) -> None:
    def fill_tmp(event: Any) -> Any:
        with open("/tmp/big", "wb") as file:
            while True:
                file.write(bytes(1 << 20))

    assert isinstance(harness.reply(fill_tmp, memory_bytes=32 * MB, tmp_bytes=256 * MB).error, OutOfMemory)


def test_a_subprocess_that_takes_too_much_does_not_end_the_sandbox(harness: Harness) -> None:
    def start_hog(event: Any) -> Any:
        import subprocess
        import sys

        code = "kept = [bytearray(1 << 20) for _ in range(500)]"
        return subprocess.run([sys.executable, "-I", "-S", "-c", code]).returncode

    running = harness.start(start_hog, memory_bytes=64 * MB)
    assert running.answer() == -9
    assert running.answer() == -9


def test_a_fork_bomb_meets_its_limit_and_no_one_elses(harness: Harness) -> None:
    def bomb(event: Any) -> Any:
        import os
        import signal

        children = []
        try:
            for _ in range(1000):
                child = os.fork()  # noqa: TID251
                if child == 0:
                    signal.pause()
                children.append(child)
        except OSError as error:
            return len(children), error.errno

    running = harness.start(bomb, pids=20)
    assert running.answer() == [19, errno.EAGAIN]
    assert harness.answer("def handler(event): return event\n", 1) == 1


def test_threads_count_as_processes(harness: Harness) -> None:
    def make_threads(event: Any) -> Any:
        import threading

        done = threading.Event()
        threads = []
        try:
            for _ in range(1000):
                thread = threading.Thread(target=done.wait)
                thread.start()
                threads.append(thread)
        except RuntimeError:
            return len(threads)
        finally:
            done.set()

    assert harness.answer(make_threads, pids=20) == 19


def test_open_files_are_limited(harness: Harness) -> None:
    def open_all(event: Any) -> Any:
        import os

        kept = []
        try:
            while True:
                kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            return len(kept), error.errno
        finally:
            for fd in kept:
                os.close(fd)

    assert harness.answer(open_all, open_files=50) == [46, errno.EMFILE]


def test_cpu_time_is_limited(harness: Harness) -> None:
    def burn(event: Any) -> Any:
        import time

        used = time.process_time()
        ended = time.monotonic() + 0.5
        while time.monotonic() < ended:
            pass
        return time.process_time() - used

    assert harness.answer(burn, cpus=0.2) < 0.3


@pytest.mark.parametrize("phase", ["Task", "Init"])
def test_a_handler_that_blocks_all_signals_dies_at_its_deadline(
    harness: Harness, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "parts", dataclasses.replace(harness.parts, init_ceiling=1))
    source = "import signal\ndef hang():\n signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n while True: pass\n"
    source += "hang()\n" if phase == "Init" else "def handler(event): hang()\n"

    async def request_and_wait(running: Running) -> tuple[Any, float]:
        with owned(os.pidfd_open(running.pid)) as pidfd:
            started = time.monotonic()
            reply = await running.send()
            await wait_exited(pidfd, 5)
            return reply.error, time.monotonic() - started - TIMEOUT_S

    late_s: list[float] = []
    while min(late_s, default=LATEST_S) >= LATEST_S and len(late_s) < TRIES:
        running = harness.start(source, timeout_s=TIMEOUT_S, init_timeout_s=TIMEOUT_S)
        error, late = harness.run(request_and_wait(running))
        late_s.append(late)
        assert isinstance(error, TimedOut)
        limit = {"Init": "init_timeout_s", "Task": "timeout_s"}[phase]
        assert error.words.split(",")[0] == f"{phase} timed out after {TIMEOUT_S:.2f} seconds"
        assert error.message.endswith(f" ({limit})")
        assert running.dead
    print(f"dead {min(late_s) * 1000:.1f} ms after its deadline")
    assert min(late_s) < LATEST_S


def test_a_deadline_ends_all_processes_of_the_sandbox(harness: Harness) -> None:
    def leave_children(event: Any) -> Any:
        import os
        import signal

        for _ in range(5):
            if os.fork() == 0:  # noqa: TID251
                os.setsid()
                signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
                while True:
                    pass
        signal.pause()

    running = harness.start(leave_children, timeout_s=TIMEOUT_S)
    assert isinstance(running.request().error, TimedOut)
    harness.settle()  # waits until its cgroup is empty


class SlowLoop:
    """A sandbox's loop whose timers go by a clock of the test: no machine is too slow or too quick for a deadline."""

    def __init__(self, running: Running) -> None:
        self._loop = running.harness.loop
        self._running = running
        self.clock = FakeClock()
        running.sandbox.conversation.deadline = Deadline(self)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self.clock.monotonic()

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> FakeTimer:
        return self.clock.call_later(delay_s, functools.partial(callback, *arguments))

    def request(self, event: object, seconds: float) -> Reply:
        """A request, while so much time passes: after it has gone out, and before anything is heard of it."""

        async def ask() -> Reply:
            asking = asyncio.create_task(self._running.send(event))
            self._loop.call_soon(self.clock.pass_by, seconds)
            return await asking

        return self._running.harness.run(ask())


def test_a_request_in_time_is_not_charged_for_the_init(harness: Harness) -> None:
    running = harness.start("def handler(event): return event\n", init_timeout_s=10, timeout_s=0.2)
    assert read_answer(SlowLoop(running).request("ok", 9.9)) == "ok"


def test_the_deadline_counts_from_each_request(harness: Harness) -> None:
    running = harness.start("def handler(event): return event\n", timeout_s=0.4)
    loop = SlowLoop(running)
    for _ in range(3):
        assert read_answer(loop.request("done", 0.39)) == "done"
    assert isinstance(loop.request("late", 0.41).error, TimedOut)


def test_an_answer_of_the_largest_size_gets_through(harness: Harness) -> None:
    def answer(size: Any) -> Any:
        return "x" * size

    running = harness.start(answer)
    assert len(running.answer(MAX_ANSWER_BYTES - 2)) == MAX_ANSWER_BYTES - 2
    error = running.request(MAX_ANSWER_BYTES - 1).error
    assert isinstance(error, ResponseTooLarge)
    assert running.answer(1) == "x"  # the sandbox is none the worse for it


def test_a_request_of_several_megabytes_gets_through(harness: Harness) -> None:
    def measure(event: Any) -> Any:
        return len(event)

    assert harness.answer(measure, "x" * (6 * MB)) == 6 * MB


def test_an_error_text_without_end_is_cut(harness: Harness) -> None:
    def fail(event: Any) -> Any:
        raise ValueError("x" * (50 << 20))

    running = harness.start(fail, memory_bytes=512 * MB)
    error = running.request().error
    assert error is not None and error.error_type == "ValueError", error
    assert len(error.message) <= MAX_ANSWER_BYTES
    assert not running.dead


def test_a_flood_of_output_is_bounded_and_counted(harness: Harness) -> None:
    def flood(size: Any) -> Any:
        import os

        block = b"x" * (1 << 20)
        written = 0
        while written < size:
            written += os.write(1, block)
        return written

    limit = 64 * 1024
    size = 1 << 30
    running = harness.start(flood, log_bytes=limit, timeout_s=15)
    reply = running.request(size)
    assert reply.error is None
    assert reply.log == b"x" * limit
    assert reply.log_dropped == size - limit
    assert running.request(10).log == b"x" * limit  # one block, cut


def test_all_that_was_printed_belongs_to_its_own_request(harness: Harness) -> None:
    def print_much(event: Any) -> Any:
        print(str(event) * 200_000)

    running = harness.start(print_much, log_bytes=1 << 20)
    for digit in range(3):
        assert running.request(digit).log == b"%d" % digit * 200_000 + b"\n"
    assert PIPE_BYTES > 200_001


def test_what_was_printed_before_a_crash_is_kept(harness: Harness) -> None:
    def print_and_crash(event: Any) -> Any:
        import os

        os.write(1, b"a" * 200_000)
        os.write(2, b"last words")
        os._exit(3)

    reply = harness.reply(print_and_crash, log_bytes=1 << 20)
    assert isinstance(reply.error, SandboxDied)
    assert reply.log == b"a" * 200_000 + b"last words"


def test_output_of_a_background_thread_goes_to_the_next_request(harness: Harness) -> None:
    def print_later(event: Any) -> Any:
        import os
        import threading

        def later() -> None:
            os.write(1, b"early")
            written.set()

        written = threading.Event()
        threading.Thread(target=later).start()
        written.wait()
        return os.getpid()

    running = harness.start(print_later)
    assert running.request().log == b"early"


def test_many_at_once_keep_to_their_limits(harness: Harness) -> None:
    programs = [
        harness.program(hog, memory_bytes=32 * MB),
        harness.program(hang, timeout_s=TIMEOUT_S),
        harness.program("def handler(event): return 1\n"),
    ]
    running = [harness.start(program) for program in programs * 4]

    async def all_at_once() -> list[Any]:
        return [type(reply.error) for reply in await asyncio.gather(*(each.send() for each in running))]

    assert harness.run(all_at_once()) == [OutOfMemory, TimedOut, type(None)] * 4
