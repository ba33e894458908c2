"""The engine as the process that it is: over its control socket, from `ready` to the end of the wire."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd_initscripts import wire
from sockd_initscripts.engine import modules
from sockd_initscripts.limits import Budget
from sockd_initscripts.report import RunReport
from sockd_storage_lib.sockd_initscript import wire as app_wire
from tests.initscripts.guests import LOOP, TIRELESS, module

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(120)


class Process:
    """`python -m sockd_initscripts`, and the daemon's end of its wire."""

    def __init__(self, limits: str = "{}") -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.starts, their_starts = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, their_starts:
            fds = [theirs.fileno(), their_starts.fileno()]
            command = [sys.executable, "-m", "sockd_initscripts", *map(str, fds), limits]
            self.process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=fds, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
            )
        self.sock.settimeout(30)

    def tell(self, message: wire.ToEngine, payload: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        wire.send(self.sock, wire.encode(message, payload), fds)

    def hear(self) -> wire.ToDaemon:
        return wire.decode_to_daemon(self.sock.recv(wire.MAX_DATAGRAM), 0)[0]

    def hear_done(self) -> RunReport:
        """The next report, which tells of a guest's end again."""
        while isinstance(message := self.hear(), wire.Ended):
            continue
        assert isinstance(message, wire.Done), message
        return message.report

    def start(self, run: int, function: int, payload: bytes = b"", memfd: int | None = None) -> socket.socket:
        """The app's end of the new run's link."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (theirs.fileno(),) if memfd is None else (theirs.fileno(), memfd)
        message = wire.Start(run=run, function=function, arrived_ns=time.monotonic_ns())
        wire.send(self.starts, wire.encode(message, payload), fds)
        theirs.close()
        ours.settimeout(10)
        return ours

    def end(self) -> tuple[int, bytes]:
        """Hang up; the exit status and what was said on standard error."""
        self.sock.close()
        self.starts.close()
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.fixture
def engine() -> Iterator[Process]:
    engine = Process()
    ready = engine.hear()
    assert isinstance(ready, wire.Ready) and ready.wasmtime == modules.WASMTIME_VERSION
    yield engine
    engine.sock.close()
    engine.starts.close()
    engine.process.kill()
    engine.process.communicate()


def define(engine: Process, number: int, wasm: bytes, tmp_path: Path, **more: object) -> None:
    path = tmp_path / f"{number}.cwasm"
    path.write_bytes(modules.compile_module(wasm))
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    path.unlink()  # the engine has the fd alone
    engine.tell(wire.Define(id=number, name=f"f{number}", **more), fds=(fd,))  # type: ignore[arg-type]
    os.close(fd)


ECHO = """
    (local.set $a (call $input_read (i32.const 0) (i32.const 512) (i32.const 16)))
    (call $note (call $input_len))
    (drop (call $send_bytes (i64.const 1) (i32.const 512) (local.get $a)))"""


def test_a_run_from_define_to_done(engine: Process, tmp_path: Path) -> None:
    define(engine, 1, module(ECHO), tmp_path)
    app = engine.start(7, 1, b"hello")
    data, beside, _, _ = app.recvmsg(app_wire.MAX_DATAGRAM, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    message, _ = app_wire.decode(data)
    (fd,) = array("i", beside[0][2])
    assert os.pread(fd, message["length"], message["offset"]) == b"hello"
    os.close(fd)
    assert engine.hear() == wire.Ended(run=7)
    while app_wire.decode(app.recv(app_wire.MAX_DATAGRAM))[0]["op"] != "end":
        continue
    app.close()
    report = engine.hear_done()
    assert (report.run, report.outcome) == (7, "exit")
    assert engine.end() == (0, b"")


def test_an_abort_a_cancel_and_a_large_event(engine: Process, tmp_path: Path) -> None:
    define(engine, 1, module("(call $abort_launch (i32.const 3) @why)", why="no"), tmp_path)
    app = engine.start(1, 1)
    assert engine.hear() == wire.Abort(run=1, status=3, message="no")
    engine.tell(wire.Cancel(run=1))
    assert engine.hear_done().outcome == "abort"
    app.close()
    define(engine, 2, module(LOOP), tmp_path, budget=Budget(deadline_s=20, cpu_ms=60_000))
    app = engine.start(2, 2)
    engine.tell(wire.Cancel(run=2))
    assert engine.hear_done().outcome == "cancelled"
    app.close()
    define(engine, 3, module("(call $exit (call $input_len))"), tmp_path)
    memfd = os.memfd_create("event")
    os.write(memfd, b"x" * 123_456)
    app = engine.start(3, 3, memfd=memfd)
    os.close(memfd)
    engine.tell(wire.Cancel(run=99))
    app.close()
    assert engine.hear_done().status in (123_456, 0)
    engine.tell(wire.Forget(id=3))
    for run, function in ((4, 99), (5, 3)):  # the first has it hear the control wire out
        app = engine.start(run, function)
        assert engine.hear_done().outcome == "bad_module"
        app.close()
    assert engine.end() == (0, b"")


def test_fds_do_not_stay_behind(engine: Process, tmp_path: Path) -> None:
    define(engine, 1, module(ECHO), tmp_path)
    counts = []
    for run in range(4):
        app = engine.start(run, 1, b"hello")
        app.close()
        engine.hear_done()
        counts.append(len(os.listdir(f"/proc/{engine.process.pid}/fd")))
    assert counts[1:] == counts[1:2] * 3
    assert engine.end() == (0, b"")


def test_the_end_of_the_wire_ends_a_running_guest_too(engine: Process, tmp_path: Path) -> None:
    define(engine, 1, module(LOOP), tmp_path, budget=TIRELESS)
    app = engine.start(1, 1)
    status, errors = engine.end()
    assert (status, errors) == (0, b"")
    assert app.recv(1000) == b""
    app.close()


def test_a_start_waits_for_what_was_said_before_it_on_the_other_wire(engine: Process, tmp_path: Path) -> None:
    for number in range(1, 30):
        define(engine, number, module("(call $exit (i32.const 5))"), tmp_path)
        app = engine.start(number, number)
        assert b'"end"' in app.recv(1000)
        app.close()
        report = engine.hear_done()
        assert (report.outcome, report.status) == ("exit", 5)
    assert engine.end() == (0, b"")


def test_a_run_that_is_cancelled_before_its_start_is_read_ends_at_once(engine: Process, tmp_path: Path) -> None:
    define(engine, 1, module(LOOP), tmp_path, budget=TIRELESS)
    engine.tell(wire.Cancel(run=7))
    engine.start(6, 99).close()  # a function that nobody knows: it hears the control wire out
    assert engine.hear_done().outcome == "bad_module"
    app = engine.start(7, 1)
    assert engine.hear_done().outcome == "cancelled"
    app.close()
    assert engine.end() == (0, b"")


def test_more_starts_at_once_than_there_are_threads_all_run(engine: Process, tmp_path: Path) -> None:
    define(engine, 1, module(LOOP), tmp_path, budget=Budget(deadline_s=30, cpu_ms=60_000))
    apps = [engine.start(run, 1) for run in range(8)]
    before = len(os.listdir(f"/proc/{engine.process.pid}/task"))
    for run in reversed(range(8)):  # the last first: it runs though none of the others has ended
        engine.tell(wire.Cancel(run=run))
        assert (report := engine.hear_done()).outcome == "cancelled" and report.run == run
    for app in apps:
        app.close()
    assert before < len(os.listdir(f"/proc/{engine.process.pid}/task"))
    assert engine.end() == (0, b"")


@pytest.mark.parametrize("wire_of", ["sock", "starts"])
def test_a_daemon_that_speaks_something_else(engine: Process, wire_of: str) -> None:
    getattr(engine, wire_of).send(b'{"op":"start","run":1,"function":1}\n')  # without its app link
    _, errors = engine.process.communicate(timeout=20)
    assert engine.process.returncode == 1
    assert b"WireError" in errors


def test_a_guests_thread_that_fails_outside_its_guest_ends_the_engine_and_all_runs(
    engine: Process, tmp_path: Path
) -> None:
    define(engine, 1, module(LOOP), tmp_path, budget=TIRELESS)
    apps = [engine.start(run, 1) for run in range(3)]
    no_socket = os.memfd_create("no link")
    wire.send(engine.starts, wire.encode(wire.Start(run=4, function=1)), [no_socket])
    os.close(no_socket)
    _, errors = engine.process.communicate(timeout=20)
    assert engine.process.returncode == 1
    assert b"Socket operation on non-socket" in errors
    for app in apps:  # an app that waits for a script that spins sees the end
        while app.recv(1000):
            continue
        app.close()


def test_limits_that_make_no_sense() -> None:
    engine = Process('{"runs": "many"}')
    status, errors = engine.end()
    assert status == 1 and b"WireError: limits" in errors


ORPHAN = """
import socket, subprocess, sys
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
engine = subprocess.Popen([sys.executable, "-m", "sockd_initscripts", str(theirs.fileno()), "{}"], pass_fds=[theirs.fileno()])
theirs.close()
ours.recv(1000)
print(engine.pid, flush=True)
sys.stdin.read()
"""


def test_it_dies_with_the_daemon() -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert daemon.stdout is not None
    pidfd = os.pidfd_open(int(daemon.stdout.readline()))
    try:
        daemon.send_signal(signal.SIGKILL)
        daemon.communicate()
        assert select.select([pidfd], [], [], 10)[0]
    finally:
        os.close(pidfd)
