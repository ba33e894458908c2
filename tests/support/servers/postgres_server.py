"""A PostgreSQL server of the tests' own: its files in one directory, a network where a test asks for it, a schema for each test.

Debian's package `postgresql` brings the programs. The server refuses to be root, so that it is started as nobody then. The kernel
kills it with the process that runs the tests, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.nobody import NOBODY

FAST: tuple[str, ...] = (
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
    """A server that listens at a socket in its directory, and at an address of the network namespace in which it starts."""

    def __init__(self, bin_path: Path, path: Path, address: str = "") -> None:
        self._bin = bin_path
        self.path = path
        self._address = address
        self._as_user = NOBODY if os.geteuid() == 0 else ()
        self._process: subprocess.Popen[str] | None = None

    def create(self) -> None:
        """Make an empty cluster, as a copy of the first one of this process: initdb takes four times as long."""
        if self._as_user:
            os.chown(self.path, 65534, 65534)
        subprocess.run(["cp", "--archive", "--reflink=auto", _empty_cluster(self._bin), self.path / "data"], check=True)

    def initialize(self) -> None:
        """Make an empty cluster by initdb."""
        if self._as_user:
            os.chown(self.path, 65534, 65534)
        self._run("initdb", "--no-sync", "--auth=trust", "--username=sockd", "--no-locale", "--encoding=UTF8")
        with open(self.path / "data" / "pg_hba.conf", "a") as rules:
            rules.write("host all all 0.0.0.0/0 trust\n")

    def follow(self, primary: PostgresServer) -> None:
        """Make this server the synchronous standby of another one, start it, and wait until it has what that has."""
        if self._as_user:
            os.chown(self.path, 65534, 65534)
        copied = ("--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync")
        self._run("pg_basebackup", *copied, "--username=sockd", f"--host={primary.path}")
        self.start()
        primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'; SELECT pg_reload_conf()")
        while primary.run("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'") != "sync":
            assert self._process is not None and self._process.poll() is None

    def promote(self) -> None:
        """Make the standby a server that is written to."""
        assert self.run("SELECT pg_promote()") == "t"

    def start(self) -> None:
        """Start the server, which ends with this process, and wait until it answers."""
        where = ("-D", str(self.path / "data"), "-c", f"listen_addresses={self._address}", "-k", str(self.path))
        command = ["setpriv", "--pdeathsig=KILL", *self._as_user[1:], str(self._bin / "postgres"), *where, *FAST]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/")
        assert self._process.stderr is not None
        lines = []
        while "ready to accept" not in (line := self._process.stderr.readline()):
            lines.append(line)
            assert line, "".join(lines)

    def crash(self) -> None:
        """End the server and its children without a checkpoint."""
        assert self._process is not None and self._process.stderr is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        self._process.stderr.close()

    def kill(self) -> None:
        """End the server and its children by SIGKILL."""
        assert self._process is not None and self._process.stderr is not None
        children = [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        pidfds = [os.pidfd_open(pid) for pid in children]
        self._process.kill()
        for pidfd in pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [])
            os.close(pidfd)
        self._process.wait()
        self._process.stderr.close()

    def copy(self, database: str, file: Path) -> None:
        """Dump the database `postgres` to a file, and restore it as another one, by PostgreSQL's own programs."""
        where = ("-h", str(self.path), "-U", "sockd")
        subprocess.run([self._bin / "pg_dump", *where, "--format=custom", f"--file={file}", "postgres"], check=True)
        self.run(f"CREATE DATABASE {database}")
        subprocess.run([self._bin / "pg_restore", *where, f"--dbname={database}", file], check=True)

    def run(self, sql: str) -> str:
        """Run SQL; return its rows."""
        where = ("-h", str(self.path), "-U", "sockd", "postgres")
        command = [str(self._bin / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *where]
        done = subprocess.run(command, input=sql, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def dsn(self, schema: str, user: str = "sockd", database: str = "postgres") -> str:
        """Return the connection string of a schema."""
        where = (
            f"{self._address}/{database}?" if self._address else f"/{database}?host={quote(str(self.path), safe='')}&"
        )
        return f"postgresql://{user}@{where}search_path={schema}"

    @property
    def pid(self) -> int:
        """The process that all others of the server are children of."""
        assert self._process is not None
        return self._process.pid

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, self._bin / program, "--pgdata", self.path / "data", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", check=False)
        assert done.returncode == 0, done.stdout.decode()


@functools.cache
def _empty_cluster(bin_path: Path) -> Path:
    """Return the files of a cluster that is never started. They go when this process ends."""
    directory = tempfile.mkdtemp(prefix="sockd-pg-", dir="/tmp")
    atexit.register(_remove, directory, os.getpid())
    PostgresServer(bin_path, Path(directory)).initialize()
    return Path(directory, "data")


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # and not a child of the process that made it
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def synchronous_standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A server that has what another one acknowledges, for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="sockd-pg-", dir="/tmp") as directory:
        standby = PostgresServer(programs(), Path(directory))
        standby.follow(primary)
        try:
            yield standby
        finally:
            standby.crash()


@contextlib.contextmanager
def postgres_server(bin_path: Path, address: str = "") -> Iterator[PostgresServer]:
    """A server that runs for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="sockd-pg-", dir="/tmp") as directory:  # a socket's path is short
        server = PostgresServer(bin_path, Path(directory), address)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.crash()
