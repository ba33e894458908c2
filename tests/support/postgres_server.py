"""A PostgreSQL server of the tests' own: its files in one directory, no network, a schema for each test.

Debian's package `postgresql` brings the programs. The server refuses to be root, so that it is started as nobody then. The kernel
kills it with the process that runs the tests, however that ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.nobody import NOBODY

FAST = (
    "-c",
    "log_min_messages=log",
    "-c",
    "fsync=off",
    "-c",
    "full_page_writes=off",
    "-c",
    "max_connections=60",
    "-c",
    "shared_buffers=16MB",
)


def programs() -> Path:
    """Return the directory of the newest server that is installed; skip the test where there is none."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found and (initdb := shutil.which("initdb")):
        found = [Path(initdb).resolve().parent]
    if not found:
        pytest.skip("needs PostgreSQL: scripts/install-postgresql")
    return max(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()])


class PostgresServer:
    """A server that listens at a socket in its directory."""

    def __init__(self, bin_path: Path, path: Path) -> None:
        self._bin = bin_path
        self.path = path
        self._as_user = NOBODY if os.geteuid() == 0 else ()
        self._process: subprocess.Popen[str] | None = None

    def create(self) -> None:
        """Make an empty cluster."""
        if self._as_user:
            os.chown(self.path, 65534, 65534)
        self._run("initdb", "--no-sync", "--auth=trust", "--username=sockd", "--no-locale", "--encoding=UTF8")

    def start(self) -> None:
        """Start the server, which ends with this process, and wait until it answers."""
        where = ("-D", str(self.path / "data"), "-c", "listen_addresses=", "-k", str(self.path))
        command = ["setpriv", "--pdeathsig=KILL", *self._as_user[1:], str(self._bin / "postgres"), *where, *FAST]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/")
        assert self._process.stderr is not None
        lines = []
        while "ready to accept connections" not in (line := self._process.stderr.readline()):
            lines.append(line)
            assert line, "".join(lines)

    def crash(self) -> None:
        """End the server and its children without a checkpoint."""
        assert self._process is not None and self._process.stderr is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        self._process.stderr.close()

    def run(self, sql: str) -> str:
        """Run SQL; return its rows."""
        where = ("-h", str(self.path), "-U", "sockd", "postgres")
        command = [str(self._bin / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *where]
        done = subprocess.run(command, input=sql, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def dsn(self, schema: str, user: str = "sockd", database: str = "postgres") -> str:
        """Return the connection string of a schema."""
        return f"postgresql://{user}@/{database}?host={quote(str(self.path), safe='')}&search_path={schema}"

    @property
    def pid(self) -> int:
        """The process that all others of the server are children of."""
        assert self._process is not None
        return self._process.pid

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, self._bin / program, "--pgdata", self.path / "data", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", check=False)
        assert done.returncode == 0, done.stdout.decode()


@contextmanager
def postgres_server(bin_path: Path) -> Iterator[PostgresServer]:
    """A server that runs for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="sockd-pg-", dir="/tmp") as directory:  # a socket's path is short
        server = PostgresServer(bin_path, Path(directory))
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.crash()
