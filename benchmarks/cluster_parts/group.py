"""A group of workers on this machine for one benchmark: PostgreSQL, workers, each on a processor of its own, and HAProxy.

Owns all of them. Speaks to the workers by HTTP and the command line only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.cluster_parts.database import Database, database
from benchmarks.harness.unix_connection import UnixConnection
from benchmarks.harness.worker import REPOSITORY, Worker, WorkerFailed, running_worker, sockd, stop

NAME = "bench"
T = TypeVar("T")
PATIENCE_S = 60.0
MOST = 8
"""Workers of a group."""
LOOK_S = 0.02
HOMES = (r"(?m)^    (acl home_|use-server ).*\n", "")
NO_BOUND = (r"(?m)^    hash-balance-factor .*\n", "")
NO_HASH = (r"(?m)^    balance hash .*\n    hash-type .*\n", "    balance roundrobin\n")
EDITS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "homes, then hash with bound": (),
    "hash with bound": (HOMES,),
    "hash": (HOMES, NO_BOUND),
    "round robin": (HOMES, NO_BOUND, NO_HASH),
}
"""Ways to choose a worker, each as changes of the file of `sockd cluster haproxy`: expressions and what replaces them."""
OURS = next(iter(EDITS))


@contextlib.contextmanager
def pinned(processor: int) -> Iterator[None]:
    """Have the calling thread, and what it starts, run on one processor for the length of a block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[processor % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Group:
    """A group whose workers are called w1, w2 and so on."""

    def __init__(
        self, directory: Path, server: Database, stack: ExitStack, settings: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Args: settings: sections of the workers' TOML besides those that all of a group have."""
        self.database = server
        self._directory = directory
        self._config = {**self._shared(), **settings}
        self._stack = stack
        self._lives: dict[str, ExitStack] = {}
        self._addresses: dict[str, str] = {}
        self.workers: dict[str, Worker] = {}

    def _shared(self) -> dict[str, Mapping[str, Any]]:
        """Make what the workers share beside the database; return its settings."""
        chunks, images, secrets = (self._directory / name for name in ("chunks", "images.key", "secret.key"))
        chunks.mkdir(mode=0o700)
        for key in (images, secrets):
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(32))
        return {
            "group": {"name": NAME, "drain_notice_s": 1.0},
            "postgres": {"dsn": self.database.dsn},
            "images": {"store": str(chunks), "key_file": str(images)},
            "secrets": {"key_file": str(secrets)},
        }

    def start(self, name: str) -> Worker:
        """Start a worker, or start it again at its address, on the processor that its number gives."""
        life = ExitStack()
        self._lives[name] = self._stack.enter_context(life)
        config = {**self._config, "postgres": {**self._config["postgres"], "worker": name}}
        with pinned(number_of(name)):
            made = life.enter_context(
                running_worker(
                    config, state_dir=self._directory / name, listen=self._addresses.get(name, "127.0.0.1:0")
                )
            )
        self._addresses[name] = f"{made.host}:{made.port}"
        self.workers[name] = made
        return made

    def stop(self, name: str) -> None:
        """End a worker by SIGTERM, and wait for that."""
        self._lives[name].close()

    def start_all(self, count: int) -> None:
        """Start so many workers, all at once."""
        together(self.start, [f"w{number}" for number in range(1, count + 1)])

    def restart_all(self) -> None:
        """Have workers that have run nothing yet: end them, and start them again."""
        names = list(self.workers)
        together(self.stop, names)
        together(self.start, names)

    def deploy(self, directory: Path, name: str) -> None:
        """Deploy a function by the first worker, and wait until each has it."""
        first, *others = self.workers.values()
        first.deploy(directory, name)
        version = version_of(first, name)
        wait_for(lambda: all(version_of(each, name) == version for each in others))

    @contextlib.contextmanager
    def front(self, way: str = OURS, workers: int = MOST) -> Iterator[int]:
        """HAProxy in front of workers for the length of a block; the value is its port.

        Args: way: one of EDITS; workers: so many, w1 first."""
        with socket.create_server(("127.0.0.1", 0)) as listener:  # HAProxy gets its descriptor
            words = [f"{name}={address}" for name, address in sorted(self._addresses.items())[:workers]]
            command = [*sockd(), "cluster", "haproxy", *words, "--listen", f"fd@{listener.fileno()}"]
            text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout
            for old, new in EDITS[way]:
                text, count = re.subn(old, new, text)
                assert count, old
            file = self._directory / "haproxy.cfg"
            file.write_text(text + "\n")
            process = subprocess.Popen(
                [haproxy(), "-db", "-f", str(file)], pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL, text=True
            )
            try:
                yield listener.getsockname()[1]
            finally:
                stop(process)


def number_of(name: str) -> int:
    return int(name.removeprefix("w")) - 1


def haproxy() -> str:
    """Raises: WorkerFailed."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise WorkerFailed("HAProxy is not installed (apt-get install haproxy)")
    return found


def put(worker: Worker, path: str, body: bytes, headers: Mapping[str, str] | None = None, method: str = "PUT") -> Any:
    """Ask the management API of a worker; return its answer, or the last line of it. Raises: WorkerFailed."""
    with contextlib.closing(UnixConnection(worker.state_dir / "sockd.sock")) as connection:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        text = answer.read()
    if answer.status != 200:
        raise WorkerFailed(f"{method} {path}: {answer.status} {text[-500:].decode(errors='replace')}")
    return json.loads(text.splitlines()[-1]) if text else None


def version_of(worker: Worker, name: str) -> int:
    """Return the number of the deploy that a worker has of a function; 0: it has none."""
    with contextlib.suppress(WorkerFailed):
        return int(put(worker, f"/functions/{name}", b"", method="GET")["version_number"])
    return 0


def together(call: Callable[[T], Any], arguments: Iterable[T]) -> None:
    """Make a call with each argument, all at the same time. Raises: what the first of them raises that does."""
    failures = list[BaseException]()

    def make(argument: T) -> None:
        try:
            call(argument)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=make, args=(each,)) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so. Raises: WorkerFailed: it does not come to be."""
    pause, ends_s = threading.Event(), PATIENCE_S / LOOK_S
    while not condition():
        pause.wait(LOOK_S)
        ends_s -= 1
        if ends_s < 0:
            raise WorkerFailed("the group did not come to be what was waited for")


@contextlib.contextmanager
def group(
    count: int, settings: Mapping[str, Mapping[str, Any]] | None = None, *, counts: bool = False
) -> Iterator[Group]:
    """A group of so many workers, for the length of a block. Args: counts: PostgreSQL counts statements."""
    haproxy()
    with database(connections=60 + 20 * count, counts=counts) as server, ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sockd-bench-group-")))
        made = Group(directory, server, stack, settings or {})
        made.start_all(count)
        yield made
