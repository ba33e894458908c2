"""A group on one machine, for trying: PostgreSQL, workers and HAProxy, each a process.

Owns them: a worker that ends is started again, at the same address; all end with the command.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from sockd.client.cli.cluster.haproxy import haproxy_file
from sockd.client.cli.cluster.local_postgres import LocalPostgres
from sockd.client.cli.worker.detaching import LOG, started
from sockd.client.console.output import Failure, say

GROUP = "local"
HOST = "127.0.0.1"
START_S = 10.0
"""How long HAProxy may take until it listens."""
STOP_S = 30.0
KEYS = ("secret.key", "images.key")
KEY_BYTES = 32
LOOK_MS = 20


class LocalCluster:
    """`start`, then `watch`; the stack ends what was started."""

    def __init__(self, directory: Path, workers: int, port: int, stack: ExitStack) -> None:
        """Args: port: of the front; the workers have the next ones. Raises: Failure: a program is not installed."""
        haproxy = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if haproxy is None:
            raise Failure("HAProxy is not installed", fix="apt-get install haproxy")
        self._haproxy = haproxy
        self._directory = directory
        self._config = directory / "sockd.toml"
        self._postgres = LocalPostgres(directory / "postgres")
        self._port = port
        self._ports = {f"w{number}": port + number for number in range(1, workers + 1)}
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = stack

    @property
    def url(self) -> str:
        """Where the front listens."""
        return f"http://{HOST}:{self._port}"

    def state_dir(self, name: str) -> Path:
        """Return the state directory of a worker."""
        return self._directory / name

    def start(self) -> None:
        """Start all. Raises: Failure."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o711)
        self._configure()
        self._postgres.start()
        self._stack.callback(self._postgres.stop)
        self._stack.callback(self._stop_workers)
        for name in self._ports:
            self._start_worker(name)
        self._start_front()

    def watch(self) -> NoReturn:
        """Start workers again that have ended, until an exception comes from a signal. Raises: Failure: HAProxy has ended."""
        while True:
            ended = self._first_to_end()
            if ended == "haproxy":
                raise Failure("HAProxy has ended", fix=f"haproxy -c -f {self._directory / 'haproxy.cfg'}")
            say(f"{ended} has ended with status {self._workers[ended].wait()}; it starts again")
            self._start_worker(ended)

    def _first_to_end(self) -> str:
        with ExitStack() as stack:
            poller, names = select.poll(), dict[int, str]()
            for name, process in {**self._workers, "haproxy": self._front}.items():
                pidfd = os.pidfd_open(process.pid)
                stack.callback(os.close, pidfd)
                poller.register(pidfd, select.POLLIN)
                names[pidfd] = name
            return names[poller.poll()[0][0]]

    def _start_worker(self, name: str) -> None:
        options = {
            "listen": f"{HOST}:{self._ports[name]}",
            "join": self._postgres.dsn,
            "group": GROUP,
            "name": name,
        }
        self._workers[name] = started(str(self.state_dir(name)), options, self._config)
        say(f"{name} listens on {options['listen']} and logs to {self.state_dir(name) / LOG}")

    def _configure(self) -> None:
        """Write the settings that all workers have, and the keys with which they seal what they share."""
        for name in KEYS:
            key = self._directory / name
            if not key.exists():
                key.touch(mode=0o600)
                key.write_bytes(os.urandom(KEY_BYTES))
        chunks = self._directory / "chunks" / "store"  # which the agents of images, other users, have open
        chunks.parent.mkdir(mode=0o700, exist_ok=True)
        chunks.mkdir(exist_ok=True)
        secrets, images = (self._directory / name for name in KEYS)
        self._config.write_text(
            f'[secrets]\nkey_file = "{secrets}"\n[images]\nstore = "{chunks}"\nkey_file = "{images}"\n'
        )

    def _stop_workers(self) -> None:
        for process in self._workers.values():
            process.terminate()
        for process in self._workers.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.kill()
            process.wait()

    def _start_front(self) -> None:
        file = self._directory / "haproxy.cfg"
        addresses = {name: f"{HOST}:{port}" for name, port in self._ports.items()}
        file.write_text(haproxy_file(addresses, f"{HOST}:{self._port}"))
        with open(self._directory / "haproxy.log", "ab") as log:
            self._front = subprocess.Popen(
                [self._haproxy, "-db", "-f", file], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        self._stack.callback(self._front.wait)
        self._stack.callback(self._front.send_signal, signal.SIGTERM)
        self._await_front()

    def _await_front(self) -> None:
        poller, ends_s = select.poll(), time.monotonic() + START_S
        pidfd = os.pidfd_open(self._front.pid)
        try:
            poller.register(pidfd, select.POLLIN)
            while time.monotonic() < ends_s and not poller.poll(LOOK_MS):
                with suppress(OSError):
                    socket.create_connection((HOST, self._port), 1.0).close()
                    return
        finally:
            os.close(pidfd)
        raise Failure(f"HAProxy does not listen on {self.url}", why=f"see {self._directory / 'haproxy.log'}")
