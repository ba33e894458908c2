"""Workers of one group on this machine, as tests start, freeze, kill and replace them, and HAProxy in front of them."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from sockd.base.config import GroupConfig
from sockd.client.cli.cluster.haproxy import haproxy_file
from tests.daemon.gate import Gate
from tests.daemon.groups.machines import Machine
from tests.daemon.kernel_view import cgroup_directories, mounts_under, wait_readable
from tests.daemon.running import DEADLINE_S, RunningDaemon
from tests.daemon.test_events import settled, soon
from tests.support.emulated import SLOWER
from tests.support.private_worker import command_without

GROUP = "g"
SILENT_S = 3.0 * SLOWER
SETTINGS = f"[group]\nheartbeat_s = 0.2\nsilent_s = {SILENT_S}\n"
DRAIN_NOTICE_S = GroupConfig().drain_notice_s
UNSIGNED = "[lambda_api]\nenabled = false\n"
"""The setting without which a worker that others reach must have keys."""
CONCURRENCY = 16
EVENTS = f"[events]\ndeath_delay_s = 0.1\nconcurrency = {CONCURRENCY}\n"
WAITS = {"f.py": "from gate import wait\ndef f(event): return wait(event['gate'], event['id'])", "gate.py": Gate.CODE}
"""A function that waits at a gate, where it says the `id` of its event."""


class Workers:
    """The workers, by name; each keeps its port and its state over its lives."""

    def __init__(
        self,
        directory: Path,
        dsn: str,
        *,
        broken: str = "",
        machines: Mapping[str, Machine] | None = None,
        drain_notice_s: float = DRAIN_NOTICE_S,
    ) -> None:
        """Args:
        broken: a protection that all of them lack (`tests/support/broken.py`); machines: of workers that have one.
        drain_notice_s: how long one that is stopped serves on, for a proxy to notice."""
        self._command = command_without(broken)[:-2]
        self._directory = directory
        self._dsn = dsn
        self.store = directory / "chunks" / "store"
        self.done = directory / "done"
        self.done.mkdir()
        self._config = (
            f"{SETTINGS}drain_notice_s = {drain_notice_s}\n{EVENTS}{self._shared()}{UNSIGNED if machines else ''}"
        )
        self._machines = machines or {}
        self._ports: dict[str, int] = {}
        self._lives: list[RunningDaemon] = []
        self.by_name: dict[str, RunningDaemon] = {}

    def _shared(self) -> str:
        """Make what the workers share beside the database; return its settings."""
        self.store.parent.mkdir(mode=0o700)
        self.store.mkdir()  # which the agents of images, other users, have open
        keys = [self._directory / name for name in ("images.key", "secret.key")]
        for key in keys:
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(32))
        return (
            f'[events.directories]\ndone = "{self.done}"\n[secrets]\nkey_file = "{keys[1]}"\n'
            f'[images]\nstore = "{self.store}"\nkey_file = "{keys[0]}"\n'
        )

    def join(self, dsn: str) -> None:
        """Have workers that start from now on join the group of another database."""
        self._dsn = dsn

    def start(
        self,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        python: Sequence[str] = (),
        cache_node_port: int = 0,
        takes_over: bool = False,
    ) -> RunningDaemon:
        """Start a worker, or start it again at its port.

        Args:
            env: variables that it has besides this process's; python: an interpreter with options, if not this one.
            cache_node_port: a setting of it; takes_over: it follows the one of this name that runs."""
        machine = self._machines.get(name)
        listen = f"{machine.address if machine else '127.0.0.1'}:{self._ports.get(name, 0)}"
        options = ["--listen", listen, "--join", self._dsn, "--group", GROUP, "--name", name]
        options += ["--take-over"] if takes_over else []
        config = self._config.replace("[group]", f"[group]\ncache_node_port = {cache_node_port}")
        command = (*(python or self._command[:1]), *self._command[1:], *options)
        with machine.entered() if machine else nullcontext():
            daemon = RunningDaemon.start(self._directory / name, config, env=env, command=command)
        self._ports[name] = daemon.port
        self._lives.append(daemon)
        self.by_name[name] = daemon
        return daemon

    @property
    def addresses(self) -> dict[str, str]:
        """Where the workers that run listen, by name."""
        return {name: f"{daemon.host}:{daemon.port}" for name, daemon in self.by_name.items()}

    def deploy(self, name: str, files: Mapping[str, str | bytes] | str, **settings: Any) -> None:
        """Deploy a function to the group, and wait until each worker that runs has it."""
        first = next(iter(self.by_name.values()))
        version = first.deploy(name, files, **settings)["version_number"]
        self.wait_for(name, lambda function: function.get("version_number") == version)

    def wait_for(self, name: str, is_so: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until each worker that runs shows a function of which something is so."""
        soon(lambda: all(is_so(each.manage("GET", f"/functions/{name}").json) for each in self.by_name.values()))

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
        """End them all at the same time, and check that they leave nothing."""
        for daemon in self._lives:
            if daemon.process.poll() is None:
                daemon.signal(signal.SIGTERM)
        for daemon in reversed(self._lives):
            daemon.close()
        for daemon in self._lives:
            assert cgroup_directories(daemon.cgroup) == []
        assert mounts_under(self._directory) == []


@contextmanager
def front(addresses: Mapping[str, str], directory: Path) -> Iterator[int]:
    """HAProxy in front of workers for the length of a block; the value is its port. Skip without HAProxy."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("needs HAProxy: scripts/install-servers")
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


def worker_of(port: int, path: str, body: object = 1, **headers: str) -> str:
    """Return the name of the worker that answers a request through the front."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer.headers["x-sockd-worker"]
    finally:
        connection.close()
