"""A PostgreSQL server for trying a group on one machine: its files and its socket in one directory, no network.

Owns the server from `start` to `stop`. The server's own programs do the work; it refuses to be root, and is another user then.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

from sockd.client.console.output import Failure

USERS = ("postgres", "nobody")
"""Who runs the server: the first that this host has."""
CONNECTIONS = 300
"""The most connections: 18 for each of 16 workers, and some."""


def programs() -> Path | None:
    """Return the directory of the newest server's programs; None: there is none."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found and (initdb := shutil.which("initdb")):
        found = [Path(initdb).resolve().parent]
    return max(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()], default=None)


class LocalPostgres:
    """The server of one directory."""

    def __init__(self, directory: Path) -> None:
        """Raises: Failure: PostgreSQL is not installed."""
        bin_path = programs()
        if bin_path is None:
            raise Failure("PostgreSQL is not installed", fix="apt-get install postgresql")
        self._bin = bin_path
        self._path = directory

    @property
    def dsn(self) -> str:
        """The connection string."""
        return f"postgresql://sockd@/postgres?host={quote(str(self._path), safe='')}"

    def start(self) -> None:
        """Start the server, with an empty database if there is none; one that runs already stays. Raises: Failure."""
        if not self._path.exists():
            self._path.mkdir(mode=0o700)
            user = _user()
            os.chown(self._path, user.pw_uid, user.pw_gid)
        if not (self._path / "data").exists():
            self._run("initdb", "--auth=trust", "--username=sockd", "--no-locale", "--encoding=UTF8")
        if self._run("pg_ctl", "status", check=False):
            options = f"-c listen_addresses= -c max_connections={CONNECTIONS} -k {self._path}"
            self._run("pg_ctl", "start", "--wait", "--silent", f"--log={self._path / 'log'}", f"--options={options}")

    def stop(self) -> None:
        """Stop the server, whose clients' connections end."""
        self._run("pg_ctl", "stop", "--mode=fast", "--silent")

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        """Return the exit status. Raises: Failure with what the program says."""
        user = _user()
        done = subprocess.run(
            [self._bin / program, *arguments, "--pgdata", self._path / "data"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            check=False,
        )
        if check and done.returncode:
            raise Failure(f"PostgreSQL: {program} failed", why=done.stderr.decode(errors="replace").strip())
        return done.returncode


def _user() -> pwd.struct_passwd:
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Failure(f"this host has no user {' or '.join(USERS)}, and PostgreSQL refuses to be root")
