"""A real daemon in a process of its own, as the tests see it: two HTTP APIs, a log, and the kernel's view of it.

Owns the process, and what it leaves if it is killed: `close` ends it and sweeps. Nothing here sleeps: what happens in the
daemon is waited for on its log, its cgroups and its pidfd.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from tests.daemon.kernel_view import cgroup_pids, wait_readable
from tests.support import sockd_template
from tests.support.emulated import SLOWER
from tests.support.older_kernel import with_kernel

REPO = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "sockd", "up", "--listen", "127.0.0.1:0")
START_DEADLINE_S = 90.0 * SLOWER
DEADLINE_S = 40.0 * SLOWER
PATIENCE_S = 60.0 * SLOWER
LOOK_S = 0.05
CACHE_MB = 64

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """One HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def timing(self) -> dict[str, float]:
        """`Server-Timing` in ms."""
        entries = (entry.split(";dur=") for entry in self.headers["server-timing"].split(", ") if ";dur=" in entry)
        return {name: float(duration) for name, duration in entries}


class DeployFailed(Exception):
    """The daemon refused a deploy; `type`, `message` and `status` are its words."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(f"{status} {error}")
        self.status = status
        self.error = error
        self.type = error["errorType"]
        self.message = error["errorMessage"]


def with_small_cache(config: str) -> str:
    """TOML with a small bound for the chunks of images on the disk: room for them is taken at once, and dozens of workers run."""
    if "cache_mb" in config:
        return config
    bound = f"[images]\ncache_mb = {CACHE_MB}\n"
    return config.replace("[images]\n", bound, 1) if "[images]\n" in config else f"{config}\n{bound}"


class RunningDaemon:
    """A daemon that serves. `start` waits until it does; `close` leaves nothing of it."""

    living: ClassVar[set[RunningDaemon]] = set()

    def __init__(self, state: Path, process: subprocess.Popen[bytes]) -> None:
        self.living.add(self)
        self.state = state
        self.process = process
        self.pid = process.pid
        self.url = ""
        self.start_s = 0.0
        """How long it took until it served."""
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls, state: Path, config: str = "", *, env: Mapping[str, str] | None = None, command: Sequence[str] = COMMAND
    ) -> RunningDaemon:
        """Args: config: TOML, without the state directory and the address. Raises: AssertionError with its log."""
        began = time.monotonic()
        daemon = cls.launch(state, config, env=env, command=command)
        try:
            daemon.url = daemon.wait_line(r"listening on (http://\S+)", deadline_s=START_DEADLINE_S)[1]
            daemon.start_s = time.monotonic() - began
        except BaseException:
            daemon.close()
            raise
        return daemon

    @classmethod
    def launch(
        cls, state: Path, config: str = "", *, env: Mapping[str, str] | None = None, command: Sequence[str] = COMMAND
    ) -> RunningDaemon:
        """As `start`, but without waiting for anything."""
        state.mkdir(exist_ok=True, parents=True)
        file = state.parent / f"{state.name}.toml"
        file.write_text(with_kernel(with_small_cache(config)))
        process = sockd_template.start(
            [*command, "--config", str(file), "--state-dir", str(state)],
            cwd=REPO,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return cls(state, process)

    # -- its APIs

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        patience_s: float = PATIENCE_S,
        **kwargs: Any,
    ) -> Answer:
        """To the public port."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=patience_s)
        return _exchange(connection, method, path, body, headers, **kwargs)

    def manage(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """To the management socket."""
        return _exchange(self.management(), method, path, body, headers)

    def management(self) -> http.client.HTTPConnection:
        """A connection to the management socket; the caller closes it."""
        return _UnixConnection(self.state / "sockd.sock")

    def run(self, name: str, event: object = None, **headers: str) -> Answer:
        """Invoke with a JSON event."""
        return self.request(
            "POST", f"/run/{name}", json.dumps(event), {k.replace("_", "-"): v for k, v in headers.items()}
        )

    def call(self, name: str, event: object = None) -> Any:
        """The answer of an invocation that must succeed."""
        answer = self.run(name, event)
        assert answer.status == 200, answer
        return answer.json

    def deploy(self, name: str, files: Mapping[str, str | bytes] | str | bytes, **settings: Any) -> dict[str, Any]:
        """Deploy files, or the text of an f.py, or a zip; `settings` win over its sockd.toml. Raises: DeployFailed.

        The new version is not started to check it, as by default it would be: tests count starts, and deploy what fails."""
        if isinstance(files, str):
            files = {"f.py": files}
        body = files if isinstance(files, bytes) else zipped(files)
        return self._put(f"/functions/{name}", body, {"x-sockd-overrides": json.dumps({"check": False, **settings})})

    def deploy_with_initscript(
        self, name: str, files: Mapping[str, str | bytes], wasm: bytes, **settings: Any
    ) -> dict[str, Any]:
        """Deploy files with a module that is uploaded beside them. Raises: DeployFailed."""
        headers = {
            "x-sockd-overrides": json.dumps({"check": False, **settings}),
            "x-sockd-initscript-bytes": str(len(wasm)),
        }
        return self._put(f"/functions/{name}", wasm + zipped(files), headers)

    def deploy_initscript(self, name: str, wasm: bytes) -> dict[str, Any]:
        """Give a function another initscript. Raises: DeployFailed."""
        return self._put(f"/functions/{name}/initscript", wasm, {})

    def _put(self, path: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        answer = self.manage("PUT", path, body, headers)
        last = json.loads(answer.body.splitlines()[-1])
        if answer.status != 200:
            raise DeployFailed(answer.status, last)
        if "error" in last:
            failure = DeployFailed(last["status"], last["error"])
            failure.add_note(
                "\n".join(self.lines[-40:])
            )  # the daemon's own words, for an error that it keeps to itself
            raise failure
        result: dict[str, Any] = last["result"]
        return result

    def remove(self, name: str) -> Answer:
        return self.manage("DELETE", f"/functions/{name}")

    def logs(self, name: str, request_id: str = "") -> list[dict[str, Any]]:
        query = f"?request_id={request_id}" if request_id else ""
        records: list[dict[str, Any]] = self.manage("GET", f"/functions/{name}/logs{query}").json
        return records

    def log_of(self, name: str, answer: Answer) -> str:
        """What one request printed."""
        return "".join(record["text"] for record in self.logs(name, answer.headers["x-amzn-requestid"]))

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.manage("GET", "/status").json
        return status

    def tree(self) -> dict[str, Any]:
        tree: dict[str, Any] = self.manage("GET", "/tree").json
        return tree

    def nodes(self) -> list[dict[str, Any]]:
        """The Zygote tree, flat: each node with `packages` of its ancestors added."""
        return list(_flat(self.tree()["root"], ()))

    def node(self, *requirements: str, network: str = "host") -> dict[str, Any] | None:
        """The Zygote that holds exactly these packages, for functions with such a network."""
        nodes = [node for node in self.nodes() if node["network"] == network]
        found = [node for node in nodes if node["packages"] == set(requirements)]
        return found[0] if found else None

    def wait_verified(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait until no top level is to be recorded, no Zygote to be made, and none to be compared with a start of a function's
        own."""
        ends, tick = time.monotonic() + deadline_s, threading.Event()
        while (status := self.status())["verifying"] or status["learning"]:
            counts = f"verifying {status['verifying']}, learning {status['learning']}, load {os.getloadavg()[0]:.0f}"
            assert time.monotonic() < ends, f"{counts}:\n" + "\n".join(self.lines[-40:])
            tick.wait(LOOK_S)

    def run_learned(self, name: str, event: object = None) -> Answer:
        """Start one more sandbox of a function that had a start of its own, from the best Zygote that the worker has learned."""
        self.wait_verified()
        self.when(lambda: not self._is_undecided(name))
        answer = self.run(name, event, x_sockd_fresh="1")
        assert answer.status == 200, answer
        return answer

    def call_learned(self, name: str, event: object = None) -> Any:
        """The answer of `run_learned`, from a Zygote that has imported packages. Raises: AssertionError, if none serves it."""
        answer = self.run_learned(name, event)
        trace = self.manage("GET", f"/traces/{answer.headers['x-amzn-requestid']}").json
        if trace["zygote"] == "root Zygote":
            found = self.manage("GET", f"/functions/{name}/imports").json
            words = [found["sharing"], *(each["reason"] for each in found["passed_over"]), *self.lines]
            raise AssertionError(f"{name} had a start of its own: " + "\n".join(words))
        return answer.json

    def _is_undecided(self, name: str) -> bool:
        """Whether a Zygote is still to be compared for a function, as that is tried again later where there was no memory."""
        passed_over = self.manage("GET", f"/functions/{name}/imports").json["passed_over"]
        return any("still to be compared" in each["reason"] for each in passed_over)

    def packages(self) -> dict[str, dict[str, Any]]:
        """`sockd packages` by name==version."""
        return {f"{row['name']}=={row['version']}": row for row in self.manage("GET", "/packages").json}

    # -- its log

    @property
    def mark(self) -> int:
        """A place in the log: the lines after it are those that come from now on."""
        with self._more:
            return len(self.lines)

    def wait_line(self, pattern: str, *, since: int = 0, deadline_s: float = DEADLINE_S) -> re.Match[str]:
        """Wait until a line of its output matches. Raises: AssertionError with the whole log."""
        ends = time.monotonic() + deadline_s
        with self._more:
            while True:
                for line in self.lines[since:]:
                    if found := re.search(pattern, line):
                        return found
                since = len(self.lines)
                if self._ended or not self._more.wait(ends - time.monotonic()):
                    raise AssertionError(f"no line {pattern!r} in:\n" + "\n".join(self.lines))

    def when(self, condition: Callable[[], T | None], *, deadline_s: float = DEADLINE_S) -> T:
        """The first true value of `condition`, which is looked at again after each line of the daemon's log, and now and then:
        not all that comes to be is logged."""
        ends = time.monotonic() + deadline_s
        while True:
            mark = self.mark
            if value := condition():
                return value
            with self._more:
                if len(self.lines) == mark and not self._more.wait(LOOK_S) and time.monotonic() > ends:
                    raise AssertionError("it did not come to be; the log:\n" + "\n".join(self.lines))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            with self._more:
                self.lines.append(raw.decode(errors="replace").rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    # -- its life

    @property
    def cgroup(self) -> str:
        """The name of its part of the cgroup tree."""
        from sockd.worker.state_dir import StateDir

        return f"sockd-{StateDir(self.state.resolve(), -1).id}"

    def pids(self) -> set[int]:
        """Every process in its cgroups: farm init, Zygotes and sandboxes."""
        return cgroup_pids(self.cgroup)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit status. Raises: AssertionError with its log, when it does not end."""
        pidfd = os.pidfd_open(self.pid) if self.process.returncode is None else -1
        try:
            if pidfd >= 0 and not wait_readable(pidfd, deadline_s):
                raise AssertionError("the daemon does not end:\n" + "\n".join(self.lines))
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        self.process.wait()
        self._reader.join(DEADLINE_S)
        return self.process.returncode

    def terminate(self, deadline_s: float = DEADLINE_S) -> int:
        """SIGTERM, and its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(deadline_s)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self.process.kill()
        self.wait()

    def close(self) -> None:
        """End it, kindly if it is still there, and remove what it left. Safe to call twice."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.wait()
            except AssertionError:
                self.kill()
        self.end_reading()
        CgroupTree(Hierarchies.detect(), self.cgroup).destroy_all(5.0)

    def end_reading(self) -> None:
        """Let go of a process that has ended, without removing what it left."""
        self._reader.join(DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.living.discard(self)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("sockd", timeout=300)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        # A path of more than 107 bytes does not fit into sockaddr_un; the directory's fd does.
        directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            self.sock.connect(f"/proc/self/fd/{directory}/{self._path.name}")
        finally:
            os.close(directory)


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any,
    headers: Mapping[str, str] | None,
    **kwargs: Any,
) -> Answer:
    try:
        connection.request(method, path, body, dict(headers or {}), **kwargs)
        response = connection.getresponse()
        answer = response.read()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, answer)
    finally:
        connection.close()


def _flat(node: Mapping[str, Any] | None, inherited: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if node is not None:
        packages = (*inherited, *node["packages"])
        yield {**node, "packages": set(packages)}
        for child in node["children"]:
            yield from _flat(child, packages)


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """A zip of these files, the same whenever it is made."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


Start = Callable[..., RunningDaemon]
"""Starts a daemon; takes what `RunningDaemon.start` does behind the directory."""
