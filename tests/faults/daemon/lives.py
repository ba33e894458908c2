"""A worker with several lives: killed at any moment and started again on the same state directory.

Owns the daemons, one at a time. Each new life is asked what the last one left: nothing but what it had published.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import sqlite3
import statistics
import time
from pathlib import Path
from typing import Any

from tests.daemon.kernel_view import cgroup_directories, mounts_under, wait_readable, waited_for_cpu_s
from tests.daemon.running import RunningDaemon
from tests.support.servers.package_index import PackageIndex

GONE = (ConnectionError, http.client.HTTPException, TimeoutError)
"""What a client sees of a daemon that is killed."""
AIM_S = 2.0
"""By when a worker that was killed should serve again, on a machine that does nothing else."""
LIMIT_S = 10.0
"""By when it must, whatever else the machine does, but for the time that others have the processors."""
PUBLISHED = re.compile(r"[0-9a-f]{64}")
MADE_AT_START = {"packages"}
"""What a worker that has just started may have in tmp/."""


class Lives:
    """`start` first; `kill` and `start` as often as one likes; `close` in the end."""

    def __init__(self, state: Path, index: PackageIndex, config: str = "", **launch: Any) -> None:
        """Args: config: TOML behind the first line of `[packages]`; launch: as for RunningDaemon.start."""
        self.state = state
        self._config = f'[packages]\nindex_url = "{index.url}"\n{config}'
        self._launch = launch
        self._past: list[RunningDaemon] = []
        self.daemon: RunningDaemon
        self.restarts_s: list[float] = []
        """How long each life but the first took to serve."""

    def start(self) -> RunningDaemon:
        """A new life; whatever an earlier one had left must be gone. Raises: AssertionError, which says what is not."""
        began = time.monotonic()
        self.daemon = RunningDaemon.start(self.state, self._config, **self._launch)
        took = time.monotonic() - began
        if self._past:
            self.restarts_s.append(took)
            late = waited_for_cpu_s({self.daemon.pid, *self.daemon.pids()})
            assert took - late < LIMIT_S, f"it served after {took:.1f} s, {late:.1f} of them without a processor"
            self.check_state()
        return self.daemon

    def start_unchecked(self) -> RunningDaemon:
        """A new life on a state that somebody else has changed."""
        self._past.append(self.daemon)
        self.daemon = RunningDaemon.start(self.state, self._config, **self._launch)
        return self.daemon

    def kill(self) -> None:
        """SIGKILL; every process that the daemon had must be gone soon, without anybody's help."""
        pidfds = []
        for pid in self.daemon.pids():
            with contextlib.suppress(ProcessLookupError):
                pidfds.append(os.pidfd_open(pid))
        self.daemon.kill()
        outlived = [fd for fd in pidfds if not wait_readable(fd, 30.0)]
        for fd in pidfds:
            os.close(fd)
        assert not outlived, f"{len(outlived)} processes outlived their daemon"
        self.daemon.end_reading()
        self._past.append(self.daemon)

    def check_state(self) -> None:
        """Nothing half done is in the state directory, and nothing that nobody knows. Raises: AssertionError."""
        assert set(os.listdir(self.state / "tmp")) <= MADE_AT_START
        assert list((self.state / "tmp").glob("packages/*")) == []
        with sqlite3.connect(f"file:{self.state / 'registry.sqlite'}?mode=ro", uri=True) as registry:
            known = {digest for (digest,) in registry.execute("SELECT DISTINCT digest FROM versions")}
        registry.close()
        published = {name for name in os.listdir(self.state / "code") if PUBLISHED.fullmatch(name)}
        assert published == set(os.listdir(self.state / "code")), "something in code/ is no version"
        assert published <= known, "code that no function has"
        assert known <= published, "a function whose code is not there"
        packages = self.state / "store" / "packages"
        installed = {name for name in os.listdir(packages) if not name.startswith(".")}
        assert {path.stem for path in (packages / ".meta").glob("*.json")} == installed

    def check_logs(self) -> None:
        """No life has logged what it did not expect. Raises: AssertionError with the log's lines around it."""
        for daemon in (*self._past, self.daemon):
            for number, line in enumerate(daemon.lines):
                assert "Traceback" not in line, "\n".join(daemon.lines[max(0, number - 2) : number + 60])

    @property
    def reported(self) -> str:
        """The restarts in words."""
        if not self.restarts_s:
            return "no restart"
        usual, worst = statistics.median(self.restarts_s), max(self.restarts_s)
        late = "" if worst <= AIM_S else f", more than the aim of {AIM_S:.0f} s"
        return f"{len(self.restarts_s)} restarts, served again after {usual:.2f} s, at most {worst:.2f} s{late}"

    def end(self) -> None:
        """SIGTERM, and nothing is left but the state. Raises: AssertionError."""
        assert self.daemon.terminate() == 0, self.daemon.lines
        self.daemon.end_reading()
        self._past.append(self.daemon)
        assert cgroup_directories(self.daemon.cgroup) == []
        assert mounts_under(self.state) == []
        self.check_logs()

    def close(self) -> None:
        """Safe after anything."""
        for daemon in (getattr(self, "daemon", None), *self._past):
            if daemon is not None:
                daemon.close()
