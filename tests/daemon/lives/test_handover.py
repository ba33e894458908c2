"""One worker follows another: its sockets are handed over, no request is refused, and either may be killed at any moment."""

from __future__ import annotations

import http.client
import random
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon.gate import WAITS, Gate
from tests.daemon.kernel_view import open_fds
from tests.daemon.running import COMMAND, DEADLINE_S, RunningDaemon, Start
from tests.support.threads import in_background

TAKE_OVER = (*COMMAND, "--take-over")
ECHO = "def f(event): return event"


class Load:
    """Clients that call a function again and again, each over a connection that it keeps as long as the worker does."""

    def __init__(self, port: int, clients: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.statuses: list[int] = []
        self.failed: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(client,)) for client in range(clients)]

    def _run(self, client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                connection.request("POST", "/run/echo", f"[{client}, {number}]")
                answer = connection.getresponse()
                body = answer.read()
                self.statuses.append(answer.status)
                if body != b"[%d,%d]" % (client, number):
                    self.failed.append(f"{answer.status} {body!r}")
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
                connection.close()
        connection.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()


def refused(old: RunningDaemon, config: str = "") -> str:
    """Return the output of a worker that cannot take over."""
    new = RunningDaemon.launch(old.state, config, command=TAKE_OVER)
    assert new.wait() != 0, new.lines
    new.end_reading()  # `close` would sweep the cgroups, which it has in common with the old one
    return "\n".join(new.lines)


def test_no_request_fails_while_one_worker_follows_another(start: Start) -> None:
    old = start()
    old.deploy("echo", ECHO, concurrency=16)
    load = Load(old.port, 8)
    with load.running():
        new = start(command=TAKE_OVER)
        assert old.wait() == 0, old.lines
        before = len(load.statuses)
        new.when(lambda: len(load.statuses) > before + 100)
    assert new.port == old.port
    assert not load.failed and set(load.statuses) == {200}, load.failed
    assert (new.state / "lock").read_text() == f"{new.pid}\n"


def test_a_long_request_keeps_no_one_waiting_while_it_is_drained(start: Start, gate: Gate) -> None:
    old = start()
    old.deploy("long", WAITS, timeout_s=60)
    old.deploy("echo", ECHO)
    with in_background(lambda: old.call("long", gate.port)) as answered:
        gate.arrived()
        with in_background(lambda: start(command=TAKE_OVER)) as started:
            old.wait_line(r"takes over: serving on")
            assert [old.call("echo", number) for number in range(50)] == list(range(50))
            old.wait_line(r"draining for at most 20 s; waiting for requests of long \(1\)")
            gate.open()
            assert answered() == "go"
            new = started()
    assert old.wait() == 0
    assert new.call("echo", 1) == 1


def test_a_restart_in_place_keeps_process_and_port(start: Start) -> None:
    daemon = start()
    daemon.deploy("echo", ECHO, concurrency=16)
    descriptors = len(open_fds(daemon.pid))
    load = Load(daemon.port, 8)
    with load.running():
        mark = daemon.mark
        daemon.signal(signal.SIGUSR2)
        daemon.wait_line(r"listening on ", since=mark)
        before = len(load.statuses)
        daemon.when(lambda: len(load.statuses) > before + 100)
    assert not load.failed and set(load.statuses) == {200}, load.failed
    assert (daemon.state / "lock").read_text() == f"{daemon.pid}\n"
    for _ in range(2):
        mark = daemon.mark
        daemon.signal(signal.SIGUSR2)
        daemon.wait_line(r"listening on ", since=mark)
    assert len(open_fds(daemon.pid)) < descriptors + 10, "each program closes what the one before had"


@pytest.mark.parametrize("harm", ["nonsense = [\n", "[nonsense]\n", '[sandbox]\nmemory_mb = "lots"\n', None])
def test_a_worker_that_would_not_start_again_serves_on(start: Start, harm: str | None) -> None:
    daemon = start()
    daemon.deploy("echo", ECHO)
    configuration = daemon.state.parent / f"{daemon.state.name}.toml"
    right, mark = configuration.read_text(), daemon.mark
    configuration.unlink()
    if harm is not None:
        configuration.write_text(harm)
    daemon.signal(signal.SIGUSR2)
    daemon.wait_line("serving on, not restarted: ", since=mark)
    assert daemon.call("echo", 1) == 1 and f"{configuration}" in "\n".join(daemon.lines[mark:])
    configuration.write_text(right)
    mark = daemon.mark
    daemon.signal(signal.SIGUSR2)
    daemon.wait_line(r"listening on ", since=mark)
    assert daemon.call("echo", 2) == 2


def test_a_stop_does_not_wait_for_the_check_of_a_restart(start: Start) -> None:
    daemon = start()
    daemon.signal(signal.SIGUSR2)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_a_successor_that_is_killed_early_leaves_the_old_worker_serving(start: Start, gate: Gate) -> None:
    old = start()
    old.deploy("long", WAITS, timeout_s=60)
    with in_background(lambda: old.call("long", gate.port)) as answered:
        gate.arrived()
        new = RunningDaemon.launch(old.state, command=TAKE_OVER)
        old.wait_line(r"takes over: serving on")
        new.kill()
        old.wait_line(rf"the sockd with pid {new.pid} ended before it took over: serving on")
        gate.open()
        assert answered() == "go"
    new.end_reading()  # as in `refused`
    old.deploy("echo", ECHO)
    assert old.call("echo", 1) == 1
    third = start(command=TAKE_OVER)  # and another may follow it
    assert old.wait() == 0, old.lines
    assert third.call("echo", 2) == 2
    third = start(command=TAKE_OVER)  # and another may follow it
    assert old.wait() == 0 and third.call("echo", 2) == 2


def test_a_successor_that_is_killed_late_is_replaced_by_the_old_program(start: Start) -> None:
    old = start()
    old.deploy("echo", ECHO)
    mark = old.mark
    new = RunningDaemon.launch(old.state, command=TAKE_OVER)
    old.wait_line(r"the state directory is free for the sockd with pid")
    new.kill()
    old.wait_line(r"ended before it served: this one starts again")
    assert old.call("echo", 1) == 1  # which waited in the accept queue
    old.wait_line(r"listening on ", since=mark)
    new.end_reading()  # as in `refused`
    assert old.terminate() == 0


@pytest.mark.parametrize("line", ["takes over: serving on", "the state directory is free for"])
def test_an_old_worker_that_is_killed_is_followed(start: Start, line: str) -> None:
    old = start()
    old.deploy("echo", ECHO)
    with in_background(lambda: start(command=TAKE_OVER)) as started:
        old.wait_line(line)
        old.kill()
        assert started().call("echo", 1) == 1


def answers(daemon: RunningDaemon) -> bool:
    """Whether a worker answers a request; its port may be closed."""
    try:
        return daemon.run("echo", 7).status == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize("seed", range(6))
def test_whichever_is_killed_at_any_moment_a_worker_serves(start: Start, seed: int) -> None:
    config = "[http]\ndrain_s = 1.0\n"
    old = start(config)
    old.deploy("echo", ECHO)
    new = RunningDaemon.launch(old.state, config, command=TAKE_OVER)
    new.url = old.url
    victim, other = (old, new) if seed % 2 else (new, old)
    threading.Event().wait(random.Random(seed).uniform(0.0, 4.0))  # there is no event of any moment
    victim.kill()
    other.when(lambda: other.process.poll() is not None or answers(other))
    if other.process.poll() is not None:
        assert other is old and other.wait() == 0, (
            other.lines
        )  # the new one served already, and nobody was to follow it
        assert answers(start(config))
    if other is new:
        new.close()
    else:
        new.end_reading()


@pytest.mark.parametrize("config", ["[nonsense]\n", '[images]\nworker = "../x"\n'], ids=["before", "when it is alone"])
def test_a_start_that_fails_costs_no_worker(start: Start, config: str) -> None:
    old = start()
    old.deploy("echo", ECHO)
    assert "why: " in refused(old, config)
    assert old.call("echo", 1) == 1


def test_a_second_successor_is_refused(start: Start, gate: Gate) -> None:
    old = start()
    old.deploy("long", WAITS, timeout_s=60)
    with in_background(lambda: old.call("long", gate.port)) as answered:
        gate.arrived()
        with in_background(lambda: start(command=TAKE_OVER)) as started:
            old.wait_line(r"takes over: serving on")
            assert f"the sockd with pid {old.pid} ends, or hands over to another" in refused(old)
            gate.open()
            assert answered() == "go"
            started()
    assert old.wait() == 0


def test_without_a_worker_a_takeover_is_a_start(start: Start) -> None:
    daemon = start(command=TAKE_OVER)
    assert daemon.status()["pid"] == daemon.pid


def activated(sock: socket.socket) -> tuple[str, ...]:
    """Return the command of a worker to which systemd passes a socket."""
    port = sock.getsockname()[1]
    worker = "up", "--listen", f"127.0.0.1:{port}"
    return (sys.executable, "-m", "tests.support.activated", str(sock.fileno()), *worker)


def test_a_socket_of_systemd_outlives_its_worker(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        old = start(command=activated(sock))
        assert old.port == sock.getsockname()[1]
        old.deploy("echo", ECHO, concurrency=16)
        load = Load(old.port, 8)
        with load.running():
            assert old.terminate() == 0
            new = start(command=activated(sock))
            before = len(load.statuses)
            new.when(lambda: len(load.statuses) > before + 100)
        assert not load.failed and set(load.statuses) == {200}, load.failed
        mark = new.mark
        new.signal(signal.SIGUSR2)  # and it is known for systemd's after a restart in place
        new.wait_line(r"listening on ", since=mark)
        load = Load(new.port, 8)
        with load.running():
            new.when(lambda: len(load.statuses) > 100)
            assert new.terminate() == 0
            start(command=activated(sock))
        assert not load.failed and set(load.statuses) == {200}, load.failed


def test_a_socket_of_systemd_at_another_address_is_refused(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        command = (*activated(sock)[:-1], "127.0.0.1:0")
        new = RunningDaemon.launch(tmp_path / "state", command=command)
        try:
            assert new.wait() == 1
            assert "make ListenStream= of the socket unit and the configuration name the same" in "\n".join(new.lines)
        finally:
            new.close()
