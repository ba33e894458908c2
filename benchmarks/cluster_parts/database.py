"""PostgreSQL for one benchmark, with the settings that its package has, but for where it listens and how many may connect.

Owns the server and its files. The kernel kills it with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
"""The server refuses to be root."""
COUNTS = ("-c", "shared_preload_libraries=pg_stat_statements", "-c", "pg_stat_statements.track_utility=off")
"""The counters of the statistics views come up to ten seconds late, and these at once."""
READY = "ready to accept connections"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class NoDatabase(Exception):
    """PostgreSQL is not installed."""


class Database:
    """A running server."""

    def __init__(self, programs: Path, path: Path, pid: int) -> None:
        self._programs = programs
        self._path = path
        self.pid = pid

    @property
    def dsn(self) -> str:
        return f"postgresql://sockd@/postgres?host={quote(str(self._path), safe='')}"

    def query(self, sql: str) -> list[list[str]]:
        """Return the rows of a query, as text."""
        where = ("-h", str(self._path), "-U", "sockd", "postgres")
        words = [str(self._programs / "psql"), "-X", "-q", "-A", "-t", "-F", "\t", *where, "-c", sql]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return [line.split("\t") for line in done.stdout.splitlines()]

    def statements(self) -> int:
        """Return how many statements a server that counts them has run, this one and the ends of transactions left out."""
        ((count,),) = self.query(
            "SELECT sum(calls) FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"
        )
        return int(count)

    def cpu_s(self) -> float:
        """Return the processor time of the server and of all its connections, those that have ended included."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(_cpu_s(pid) for pid in (str(self.pid), *children)) + _cpu_s(str(self.pid), of_ended=True)


def _cpu_s(pid: str, *, of_ended: bool = False) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    user, system = (13, 14) if of_ended else (11, 12)
    return (int(fields[user]) + int(fields[system])) / TICKS_PER_S


@contextlib.contextmanager
def database(connections: int = 100, *, counts: bool = False) -> Iterator[Database]:
    """A server that runs for the length of a block. Args: counts: it counts statements. Raises: NoDatabase."""
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="sockd-bench-pg-", dir="/tmp") as name:  # a socket's path is short
        path = Path(name)
        user: Sequence[str] = ()
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
            user = AS_NOBODY
        data = ("--pgdata", str(path / "data"))
        make = ("--no-sync", "--auth=trust", "--username=sockd", "--no-locale", "--encoding=UTF8")
        subprocess.run([*user, str(programs / "initdb"), *data, *make], check=True, capture_output=True, cwd="/")
        options = (
            "-D",
            str(path / "data"),
            "-k",
            str(path),
            "-c",
            "listen_addresses=",
            "-c",
            f"max_connections={connections}",
            *(COUNTS if counts else ()),
        )
        command = ["setpriv", "--pdeathsig=KILL", *user[1:], str(programs / "postgres"), *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/", start_new_session=True) as process:
            try:
                assert process.stderr
                while READY not in (line := process.stderr.readline()):
                    if not line:
                        raise NoDatabase("PostgreSQL did not start")
                made = Database(programs, path, process.pid)
                if counts:
                    made.query("CREATE EXTENSION pg_stat_statements")
                yield made
            finally:
                process.send_signal(signal.SIGQUIT)


def _programs() -> Path:
    """Return the directory of the newest server's programs. Raises: NoDatabase."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found and (initdb := shutil.which("initdb")):
        found = [Path(initdb).resolve().parent]
    if not found:
        raise NoDatabase("PostgreSQL is not installed (apt-get install postgresql)")
    return max(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()])
