"""Workers of one group on this machine, as tests start, freeze, kill and replace them, and HAProxy in front of them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sockd.client.cli.cluster.haproxy import haproxy_file
from tests.daemon.gate import Gate
from tests.daemon.kernel_view import cgroup_directories, mounts_under, wait_readable
from tests.daemon.running import DEADLINE_S, RunningDaemon
from tests.daemon.test_events import settled, soon
from tests.support.emulated import SLOWER
from tests.support.private_worker import command_without

GROUP = "g"
SILENT_S = 3.0 * SLOWER
SETTINGS = f"[group]\nheartbeat_s = 0.2\nsilent_s = {SILENT_S}\n"
CONCURRENCY = 16
EVENTS = f"[events]\ndeath_delay_s = 0.1\nconcurrency = {CONCURRENCY}\n"
WAITS = {"f.py": "from gate import wait\ndef f(event): return wait(event['gate'], event['id'])", "gate.py": Gate.CODE}
"""A function that waits at a gate, where it says the `id` of its event."""


class Workers:
    """The workers, by name; each keeps its port and its state over its lives."""

    def __init__(self, directory: Path, dsn: str, *, broken: str = "") -> None:
        """Args: broken: a protection that all of them lack (`tests/support/broken.py`)."""
        self._command = command_without(broken)[:-2]
        self._directory = directory
        self._dsn = dsn
        self.done = directory / "done"
        self.done.mkdir()
        self._config = f"{SETTINGS}{EVENTS}{self._shared()}"
        self._ports: dict[str, int] = {}
        self._lives: list[RunningDaemon] = []
        self.by_name: dict[str, RunningDaemon] = {}

    def _shared(self) -> str:
        """Make what the workers share beside the database; return its settings."""
        chunks, *keys = (self._directory / name for name in ("chunks", "images.key", "secret.key"))
        chunks.mkdir(mode=0o700)
        for key in keys:
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(32))
        return (
            f'[events.directories]\ndone = "{self.done}"\n[secrets]\nkey_file = "{keys[1]}"\n'
            f'[images]\nstore = "{chunks}"\nkey_file = "{keys[0]}"\n'
        )

    def start(self, name: str) -> RunningDaemon:
        """Start a worker, or start it again at its port."""
        listen = f"127.0.0.1:{self._ports.get(name, 0)}"
        options = ("--listen", listen, "--join", self._dsn, "--group", GROUP, "--name", name)
        daemon = RunningDaemon.start(self._directory / name, self._config, command=(*self._command, *options))
        self._ports[name] = daemon.port
        self._lives.append(daemon)
        self.by_name[name] = daemon
        return daemon

    def deploy(self, name: str, files: Mapping[str, str | bytes] | str, **settings: Any) -> None:
        """Deploy a function to the group, and wait until each worker that runs has it."""
        first, *others = self.by_name.values()
        version = first.deploy(name, files, **settings)["version_number"]
        soon(
            lambda: all(
                each.manage("GET", f"/functions/{name}").json.get("version_number") == version for each in others
            )
        )

    def members(self, of: str) -> dict[str, dict[str, Any]]:
        """Return the group as one worker shows it, by name."""
        rows = self.by_name[of].manage("GET", "/workers").json
        return {row["name"]: row for row in rows}

    def wait_until(self, of: str, **states: str) -> None:
        """Wait until one worker shows others in these states."""
        soon(lambda: all(self.members(of).get(name, {}).get("state") == state for name, state in states.items()))

    def settled(self) -> None:
        """Wait until no worker that runs has an event."""
        for daemon in self.by_name.values():
            settled(daemon)

    def ended(self) -> set[str]:
        """Return the ids of the events whose records are among the destinations."""
        return {file.stem for file in self.done.glob("*.json")}

    def kill(self, name: str) -> None:
        """End a worker by SIGKILL."""
        self.by_name.pop(name).kill()

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Stop a worker's process for the length of a block."""
        daemon = self.by_name[name]
        daemon.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            daemon.signal(signal.SIGCONT)

    def close(self) -> None:
        """End them all, and check that they leave nothing."""
        for daemon in reversed(self._lives):
            daemon.close()
        for daemon in self._lives:
            assert cgroup_directories(daemon.cgroup) == []
        assert mounts_under(self._directory) == []


@contextmanager
def front(workers: Workers, directory: Path) -> Iterator[int]:
    """HAProxy in front of the workers that run, for the length of a block; the value is its port. Skip without HAProxy."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("needs HAProxy: scripts/install-servers")
    addresses = {name: f"127.0.0.1:{daemon.port}" for name, daemon in workers.by_name.items()}
    with socket.create_server(("127.0.0.1", 0)) as listener:  # HAProxy gets its descriptor
        file = directory / "haproxy.cfg"
        file.write_text(haproxy_file(addresses, f"fd@{listener.fileno()}"))
        process = subprocess.Popen(
            [program, "-db", "-f", file],
            pass_fds=[listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield listener.getsockname()[1]
        finally:
            process.terminate()
            pidfd = os.pidfd_open(process.pid)
            assert wait_readable(pidfd, DEADLINE_S)
            os.close(pidfd)
            process.wait()
