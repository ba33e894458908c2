"""How a sandbox ends by its own doing, and what its client and its owner get."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sockd.base.errors import FunctionFailed, InitFailed, InvalidEvent, OutOfMemory, SandboxDied, SockdError
from sockd.isolation.sandbox.lifecycle import State
from sockd_zygote import protocol
from tests.support.harness import Harness, uids_in_use

pytestmark = [pytest.mark.root, pytest.mark.parametrize("whole_harness", ["auto", (6, 1)], indirect=True)]
"""As this kernel has exit statuses, and as one before 6.15 has them."""

NO_REASON = "Runtime exited without providing a reason"
STATUS = "Runtime exited with error: exit status {}"
SIGNAL = "Runtime exited with error: signal: {}"


def error_of(harness: Harness, source: str, **options: Any) -> SockdError:
    running = harness.start(source, **options)
    error = running.request().error
    assert error is not None
    assert running.dead
    return error


ENDINGS = {
    "import sys; sys.exit()": NO_REASON,
    "import sys; sys.exit(0)": NO_REASON,
    "import sys; sys.exit(3)": STATUS.format(3),
    "import sys; sys.exit('a message')": STATUS.format(1),
    "raise SystemExit(255)": STATUS.format(255),
    "exit(4)": STATUS.format(4),
    "import os; os._exit(7)": STATUS.format(7),
    "import os; os._exit(0)": NO_REASON,
    "import ctypes; ctypes.string_at(0)": SIGNAL.format("segmentation fault"),
    "import os; os.abort()": SIGNAL.format("aborted"),
    "import faulthandler, os; faulthandler.enable(); os.abort()": SIGNAL.format("aborted"),
    "import threading, os; threading.Thread(target=os.abort).start(); threading.Event().wait()": SIGNAL.format(
        "aborted"
    ),
    "import ctypes; ctypes.CDLL(None).abort()": SIGNAL.format("aborted"),
    "import os; os.kill(os.getpid(), 15)": SIGNAL.format("terminated"),
    "import os; os.kill(1, 10)": SIGNAL.format("user defined signal 1"),
    "import signal; signal.raise_signal(1)": SIGNAL.format("hangup"),
    "import signal; signal.setitimer(signal.ITIMER_REAL, 0.01); signal.sigwait([2])": SIGNAL.format("alarm clock"),
}


@pytest.mark.parametrize("phase", ["request", "init"])
@pytest.mark.parametrize("statement", ENDINGS)
def test_the_reason_is_reported(harness: Harness, phase: str, statement: str) -> None:
    source = f"def handler(event):\n    {statement}\n" if phase == "request" else f"{statement}\n"
    error = error_of(harness, source)
    assert type(error) is SandboxDied, error
    assert error.message == ENDINGS[statement]


def test_the_reason_is_reported_every_time(harness: Harness) -> None:
    program = harness.program("import os\ndef handler(event): os._exit(event)\n")
    messages = set()
    for _ in range(100):
        error = harness.start(program).request(9).error
        assert error is not None
        messages.add(error.message)
    assert messages == {STATUS.format(9)}


@pytest.mark.parametrize("how", ["os.close(3)", "os.closerange(0, 100)", "os.dup2(0, 3)"])
def test_one_that_closes_its_channel_is_dead(harness: Harness, how: str) -> None:
    source = f"import os, signal\ndef handler(event):\n    {how}\n    signal.pause()\n"
    error = error_of(harness, source, timeout_s=5)
    assert type(error) is SandboxDied


@pytest.mark.parametrize("fds", [(0,), (1,), (2,), (0, 1, 2)])
def test_one_without_standard_streams_answers(harness: Harness, fds: tuple[int, ...]) -> None:
    def close(fds: Any) -> Any:
        import os

        for fd in fds:
            try:
                os.close(fd)
            except OSError:
                continue
        try:
            print("into the void")
        except OSError:
            return "no stdout"
        return "fine"

    running = harness.start(close)
    assert running.answer(fds) in ("fine", "no stdout")
    assert running.answer([]) in ("fine", "no stdout")


def test_one_that_replaced_its_streams_answers(harness: Harness) -> None:
    def replace(event: Any) -> Any:
        import sys

        class Stream:
            def write(self, text: str) -> int:
                raise RuntimeError("no")

            def flush(self) -> None:
                raise LookupError("no")

        sys.stdout = sys.stderr = Stream()
        return "fine"

    running = harness.start(replace)
    assert [running.answer(), running.answer()] == ["fine", "fine"]


GARBAGE = {
    "text": "b'hello, world! this is not a frame'",
    "zeros": "bytes(64)",
    "an unknown type": "struct.pack('<IBBHQ', 0, 99, 0, 0, 1)",
    "reserved bits": "struct.pack('<IBBHQ', 0, 5, 1, 0, 1)",
    "a length over the limit": "struct.pack('<IBBHQ', 0xffffffff, 5, 0, 0, 1)",
    "a frame of the daemon's": "struct.pack('<IBBHQ', 0, 4, 0, 0, 1)",
    "a short result": "struct.pack('<IBBHQ', 1, 5, 0, 0, 1) + b'x'",
    "another request's result": "struct.pack('<IBBHQ', 18, 5, 0, 0, 12345) + bytes(16) + b'{}'",
    "a second READY": "struct.pack('<IBBHQ', 16, 3, 0, 0, 0) + bytes(16)",
    "PRIMED": "struct.pack('<IBBHQ', 0, 1, 0, 0, 0)",
    "MODULES that is no JSON": "struct.pack('<IBBHQ', 4, 7, 0, 0, 0) + b'nope'",
    "MODULES that nests": "struct.pack('<IBBHQ', 100000, 7, 0, 0, 0) + b'[' * 100000",
    "MODULES with a number too large": "struct.pack('<IBBHQ', 415, 7, 0, 0, 0) + b'[[\"a\",\"b\",' + b'9' * 403 + b']]'",
    "MODULES without triples": "struct.pack('<IBBHQ', 5, 7, 0, 0, 0) + b'[[1]]'",
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_on_the_channel_ends_the_sandbox(harness: Harness, what: str) -> None:
    source = f"import os, signal, struct\ndef handler(event):\n    os.write(3, {GARBAGE[what]})\n    signal.pause()\n"
    error = error_of(harness, source, timeout_s=5)
    assert type(error) is SandboxDied, error
    assert error.message.startswith("the sandbox broke its protocol: ")


@pytest.mark.parametrize("kind", ["RESULT", "FAILED", "READY"])
@pytest.mark.parametrize("body", ["bytes(16) + b'{}'", "bytes(16) + b'[' * 100000", "bytes(16)", "b''"])
def test_an_answer_before_the_init_is_over_is_no_answer(harness: Harness, kind: str, body: str) -> None:
    """User code may read the queued request off the channel and answer it itself, while it is still being imported."""
    number = getattr(protocol, kind)
    source = f"""
    import os, signal, struct
    header = os.read(3, 16)
    length, _, _, _, request = struct.unpack('<IBBHQ', header)
    body = {body}
    os.write(3, struct.pack('<IBBHQ', len(body), {number}, 0, 0, request) + body)
    signal.pause()
    """
    running = harness.start(source, init_timeout_s=0.3, timeout_s=0.3)
    reply = running.request()
    assert isinstance(reply.error, SockdError)
    assert running.dead


def test_an_answer_made_by_the_handler_itself_is_only_its_own_affair(harness: Harness) -> None:
    """The handler answers its own request by hand; the server's answer after it is one too many."""
    source = """
    import os, struct
    def handler(event):
        body = bytes(16) + b'"by hand"'
        for number in range(event["from"], event["to"]):
            pass
        os.write(3, struct.pack('<IBBHQ', len(body), 5, 0, 0, number) + body)
    """
    running = harness.start(source)
    error = running.request({"from": 0, "to": 1 << 16}).error
    assert isinstance(error, SandboxDied)


def test_a_child_forked_behind_the_interpreter_that_answers_too_ends_the_sandbox(harness: Harness) -> None:
    def answer_twice(event: Any) -> Any:
        import ctypes

        ctypes.CDLL(None).fork()
        return "whoever"

    running = harness.start(answer_twice)
    died = harness.loop.create_future()
    running.sandbox.on_death = died.set_result
    assert running.answer() == "whoever"
    harness.run(asyncio.wait_for(died, 5))


@pytest.mark.parametrize("after", ["os._exit(0)", "os.write(3, bytes(64))", "os.close(3)"])
def test_what_follows_an_answer_does_not_undo_it(harness: Harness, after: str) -> None:
    source = f"""
    import os, struct, sys
    def handler(event):
        class Stream:
            def flush(self):
                frame = sys._getframe(2)
                while "number" not in frame.f_locals: frame = frame.f_back
                body = bytes(16) + b'"mine"'
                os.write(3, struct.pack('<IBBHQ', len(body), 5, 0, 0, frame.f_locals["number"]) + body)
                {after}
        sys.stdout = Stream()
    """
    for _ in range(20):
        running = harness.start(source)
        died = harness.loop.create_future()
        running.sandbox.on_death = died.set_result
        assert running.answer() == "mine"
        harness.run(asyncio.wait_for(died, 5))


def test_one_that_dies_between_requests_is_forgotten_at_once(harness: Harness) -> None:
    def die_when_told(event: Any) -> Any:
        import os
        import signal

        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(1))

    running = harness.start(die_when_told)
    died = harness.loop.create_future()
    running.sandbox.on_death = died.set_result
    running.answer()
    assert running.sandbox.lifecycle.state is State.IDLE
    os.kill(running.pid, signal.SIGTERM)
    harness.run(asyncio.wait_for(died, 5))
    assert running.dead


def test_one_that_is_killed_from_outside_says_by_which_signal(harness: Harness) -> None:
    running = harness.start("import signal\ndef handler(event):\n    signal.pause()\n")
    harness.loop.call_later(0.05, lambda: os.kill(running.pid, signal.SIGKILL))
    error = running.request().error
    assert error is not None and error.message == SIGNAL.format("killed")


def test_signals_end_processes_as_on_plain_linux(harness: Harness) -> None:
    def handler(event: Any) -> Any:
        import multiprocessing
        import os
        import signal
        import subprocess
        import threading

        found: list[Any] = [signal.getsignal(signal.SIGTERM) is signal.SIG_DFL]
        came: list[int] = []
        previous = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
        os.kill(os.getpid(), signal.SIGUSR1)
        found.append(came == [signal.SIGUSR1] and previous is signal.SIG_DFL)
        child = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
        child.start()
        child.terminate()
        child.join()
        found.append(child.exitcode)
        with subprocess.Popen(["/bin/sh", "-c", "kill -TERM $$; exit 3"]) as shell:
            found.append(shell.wait())
        return found

    assert harness.answer(handler) == [True, True, -15, -15]


def test_a_crash_after_a_process_was_killed_for_memory_is_a_crash(harness: Harness) -> None:
    """As a stack overflow, in C or in a program."""

    def handler(event: Any) -> Any:
        import os

        pid = os.fork()  # noqa: TID251
        if pid == 0:
            bytearray(1 << 30)
        assert os.waitpid(pid, 0)[1] == 9
        if event == "overflow":

            class Deep:
                def __repr__(self) -> str:
                    return repr(self)

            import contextlib
            import ctypes
            import sys

            sys.setrecursionlimit(10**9)
            with contextlib.suppress(RecursionError):  # from 3.14 on Python looks how much of its stack is left
                repr(Deep())
            ctypes.string_at(0)
        os._exit(137)

    crashed, killed = (harness.reply(handler, event).error for event in ("overflow", "killed"))
    assert type(crashed) is SandboxDied and crashed.message == SIGNAL.format("segmentation fault")
    assert type(killed) is OutOfMemory


def test_no_core_file_is_left(harness: Harness) -> None:
    before = set(os.listdir("/")) | set(os.listdir("/tmp"))
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    error_of(harness, "import resource, os\ndef handler(event):\n    os.chdir('/tmp')\n    os.abort()\n")
    left = (set(os.listdir("/")) | set(os.listdir("/tmp"))) - before
    assert not [name for name in left if "core" in name], pattern


RAISING = {
    "raise ValueError('no')": ("ValueError", "no"),
    "raise KeyError('k')": ("KeyError", "'k'"),
    "1/0": ("ZeroDivisionError", "division by zero"),
    "raise KeyboardInterrupt('by hand')": ("KeyboardInterrupt", "by hand"),
    "raise GeneratorExit('odd')": ("GeneratorExit", "odd"),
    "import asyncio; raise asyncio.CancelledError('mine')": ("CancelledError", "mine"),
    "raise type('Own', (BaseException,), {})('base')": ("Own", "base"),
    "f = lambda: f(); f()": ("RecursionError", "maximum recursion depth exceeded"),
    "raise MemoryError": ("MemoryError", ""),
    r"raise ValueError('\udc80')": ("ValueError", "\udc80"),
}


@pytest.mark.parametrize("statement", RAISING)
def test_a_handler_that_raises_is_answered_for_and_lives(harness: Harness, statement: str) -> None:
    source = f"def handler(event):\n    if event == 'well': return event\n    {statement}\n"
    running = harness.start(source)
    error = running.request().error
    assert type(error) is FunctionFailed
    assert (error.error_type, error.message.partition(" while")[0]) == RAISING[statement]
    assert any("f.py" in line for line in error.stack_trace)
    assert not any("/opt/sockd" in line for line in error.stack_trace)
    assert running.answer("well") == "well"


def test_an_error_that_cannot_be_printed_is_answered_for(harness: Harness) -> None:
    source = """
    class Unprintable(Exception):
        def __str__(self): raise RuntimeError("never")
    def handler(event): raise Unprintable
    """
    running = harness.start(source)
    error = running.request().error
    assert error is not None and error.error_type == "Unprintable"
    assert not running.dead


@pytest.mark.parametrize(
    ("source", "error_type", "words"),
    [
        ("raise ValueError('at import')", "ValueError", "at import"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("def handler(:", "SyntaxError", "invalid syntax"),
        ("import no_such_module", "ModuleNotFoundError", "No module named 'no_such_module'"),
        ("x = 1", "Runtime.HandlerNotFound", "module 'f' has no 'handler'"),
        ("handler = 5", "Runtime.HandlerNotFound", "f:handler is not callable"),
        ("def handler(): pass", "Runtime.HandlerNotFound", "must take (event) or (event, context)"),
        ("def handler(a, b, c): pass", "Runtime.HandlerNotFound", "must take (event) or (event, context)"),
    ],
)
def test_an_init_that_fails_is_reported_and_ends_the_sandbox(
    harness: Harness, source: str, error_type: str, words: str
) -> None:
    error = error_of(harness, source)
    assert type(error) is InitFailed, error
    assert error.error_type == error_type
    assert words in error.message


def test_an_entry_point_that_is_not_there_says_so(harness: Harness) -> None:
    for handler in ("nowhere:handler", "nowhere.deeper:handler", "f.deeper:handler"):
        error = error_of(harness, "def handler(event): pass\n", handler=handler)
        assert error.error_type == "Runtime.HandlerNotFound", (handler, error)


@pytest.mark.parametrize("event", [b"", b"{", b"\xff\xfe{", b"[" * 100_000])
def test_an_event_that_is_no_json_is_the_callers_fault(harness: Harness, event: bytes) -> None:
    running = harness.start("def handler(event): return event\n")
    running.answer()
    error = harness.run(running.sandbox.request(bytes(16), event)).error
    assert type(error) is InvalidEvent, error
    assert running.answer("well") == "well"


@pytest.mark.parametrize("value", ["bytearray(b'x')", "[b'\\xff']", "{1, 2}", "object()", "[lambda: 1]", "{(1,): 2}"])
def test_a_value_that_json_cannot_hold_is_an_error(harness: Harness, value: str) -> None:
    running = harness.start(f"def handler(event):\n    return event or {value}\n")
    error = running.request().error
    assert error is not None and error.error_type == "Runtime.MarshalError", error
    assert error.message.startswith("Unable to marshal response: ")
    assert running.answer("well") == "well"


def test_after_all_of_it_every_uid_is_back(harness: Harness) -> None:
    for statement in ("1/0", "import os; os._exit(1)", "import os; os.abort()"):
        harness.reply(f"def handler(event):\n    {statement}\n")
    harness.settle()
    assert uids_in_use(harness.root) == 0


def test_destroyed_before_its_end_is_looked_into_it_is_looked_into_no_more(harness: Harness) -> None:
    running = harness.start("import time\ndef handler(event): time.sleep(60)\n")

    async def end_and_destroy() -> None:
        asking = asyncio.create_task(running.send())
        while running.sandbox.conversation.exchange is None:
            await asyncio.sleep(0)
        running.sandbox.conversation._on_end(None)
        running.sandbox.destroy()
        assert type((await asking).error) is SandboxDied
        assert running.sandbox.conversation._explaining is not None
        await running.sandbox.conversation._explaining

    harness.run(end_and_destroy())


def test_an_abort_of_a_child_process_is_one(harness: Harness) -> None:
    source = """
        import os, signal, subprocess, sys
        def handler(event):
            pid = os.fork()
            if pid == 0:
                os.abort()
            ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
            ended.append(subprocess.run([sys.executable, "-c", "import os; os.abort()"], stderr=subprocess.DEVNULL).returncode)
            pid = os.fork()
            if pid == 0:
                signal.pause()
            os.kill(pid, signal.SIGABRT)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            caught = []
            before = signal.signal(signal.SIGABRT, lambda *_: caught.append(1))
            signal.raise_signal(signal.SIGABRT)
            return [ended, before == signal.SIG_DFL, caught]
    """
    assert harness.answer(source) == [[-6, -6, -6], True, [1]]


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("return 'child'", 0, "a process that the function forked has returned from it, and ends"),
        ("raise ValueError('in the child')", 1, "ValueError: in the child"),
        ("raise SystemExit(3)", 3, ""),
    ],
)
def test_a_child_process_that_comes_back_from_the_handler_ends_and_answers_nothing(
    harness: Harness, end: str, status: int, said: str
) -> None:
    source = f"""
        import os
        def handler(event):
            pid = os.fork()
            if pid == 0:
                {end}
            return [os.getpid(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
    """
    running = harness.start(source)
    for _ in range(2):
        reply = running.request()
        assert json.loads(reply.body) == [1, status]
        assert said.encode() in reply.log
    assert not running.dead


def test_a_child_process_that_comes_back_from_an_import_ends(harness: Harness) -> None:
    source = """
        import os
        pid = os.fork()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else None
        def handler(event):
            return [os.getpid(), status]
    """
    assert harness.answer(source) == [1, 0]


def test_arguments_are_those_of_a_program_without_any(harness: Harness) -> None:
    source = """
        import argparse, sys
        parser = argparse.ArgumentParser()
        parser.add_argument("--verbose", action="store_true")
        arguments = parser.parse_args()
        def handler(event):
            return [vars(arguments), sys.argv, sys.orig_argv[1:]]
    """
    bootstrap = ["/var/runtime/bootstrap.py"]
    assert harness.answer(source) == [{"verbose": False}, bootstrap, bootstrap]
