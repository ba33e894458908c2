"""From nothing on a worker to the first answer of a function in a container image, with the origin at two distances.

    full pull        a tool fetches the image from the registry and unpacks it, the program is started in its files (chroot); with
                     each of `full_pulls` that is installed, of which the fastest is what the others are compared with
    on demand        a worker that has nothing deploys the image, which the store has, and is asked once
    with profile     the same; the store has a startup profile, which has the data of a start
    code change      a worker that knows the build before deploys the next one, of which only the program's file is another; its
                     profile is derived from that of the build before, which is on the worker's disk or in the store only. Beside
                     it without any profile, and with one of its own
    L2, L1, unpacked the worker knows the function and was started again: nothing is in memory; chunks come from cache nodes,
                     from its own disk, or there is a whole file system on its disk (`images.on_demand = false`). With the
                     profile, as on each worker whose function has served for some seconds, and without

Two images of the same layers (an interpreter; numpy, pandas and Django): the program of one imports what its Runtime API needs,
that of the other all packages. Cases take turns.
The worker's own start is not counted, as no function waits for it: each worker is ready for images first.
"""

from __future__ import annotations

import http.server
import json
import os
import random
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.client import Client
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.harness.unix_connection import UnixConnection
from benchmarks.harness.worker import Config, Worker, WorkerFailed, running_worker
from benchmarks.image_parts import full_pulls, nydus, python_image
from benchmarks.image_parts.origin import REGISTRY, Origin, origin
from benchmarks.image_parts.python_image import NoPackages

DISK = "/var/tmp"
DISTANCES_MS = (0.0, 36.0)
HEAVY = ("numpy==1.26.4", "pandas==2.2.2", "Django==5.0.6")
IMPORTS = {"handler": "", "heavy": "import numpy, pandas, django.http, django.db.models"}
PULL, PLAIN, PROFILED = "full pull with", "on demand", "on demand, with profile"
CHANGE = "after a code change"
CHANGE_PLAIN, CHANGE_OWN = f"{CHANGE}, no profile", f"{CHANGE}, own profile"
CHANGE_DERIVED, CHANGE_STORED = f"{CHANGE}, derived profile", f"{CHANGE}, derived profile, from the store"
CHANGES = {CHANGE_PLAIN: "plain", CHANGE_OWN: "rebuilt", CHANGE_DERIVED: "profiled", CHANGE_STORED: "profiled"}
"""Their tenants, which have profiles or not of either build."""
L2, L1, UNPACKED = "L2 warm", "L1 warm", "unpacked"
L2_PLAIN, L1_PLAIN = "L2 warm, without profile", "L1 warm, without profile"
KEPT: dict[str, tuple[str, dict[str, Any]]] = {
    L2: ("profiled", {"nodes": True}),
    L2_PLAIN: ("plain", {"nodes": True}),
    L1: ("profiled", {}),
    L1_PLAIN: ("plain", {}),
    UNPACKED: ("plain", {"on_demand": False}),
}
"""Workers that are started again: their tenants, which have profiles or not, and settings."""
ANSWER = "first answer"
SETTINGS = {"memory_mb": 1024, "timeout_s": 60, "init_timeout_s": 60}
DEADLINE_S = 60.0
READY = "images are ready"
"""In the worker's log."""
DERIVED = "starts from the startup profile of"
"""The same for a start from another image's profile."""
EMPTY_ZIP = b"PK\5\6" + bytes(18)
TOOLS = ("skopeo", REGISTRY)


@dataclass(frozen=True, slots=True)
class Image:
    """One that is measured."""

    name: str
    layout: Path
    next_layout: Path
    """The layout of the next build."""
    rafs: dict[str, nydus.Rafs] = field(default_factory=dict)
    """By case of Nydus; empty without it."""

    def start(self, root: str) -> None:
        """Start its program in a directory, and wait for its first answer."""
        first_answer_of(root, f"/{self.name}")


def measure(run: Run, result: Result) -> None:
    """Needs root, skopeo and docker-registry; other tools are measured if they are installed."""

    def measure_one(image: Image, there: Origin, scratch: Path, case: str) -> None:
        Measuring(image, there, scratch).measure(run, result, case)

    note_missing_pulls(result)
    if images := measure_each(run, result, measure_one):
        judge(result, [image.name for image in images])
        compare_with_nydus(result, [image.name for image in images if image.rafs])


def measure_each(
    run: Run,
    result: Result,
    measure_one: Callable[[Image, Origin, Path, str], None],
    distances_ms: Sequence[float] = DISTANCES_MS,
) -> list[Image]:
    """Measure each image at each distance of the origin.

    Args: measure_one: called with a directory for its files, and with the name of the case.
    Returns: the images; none, and a note, if what makes or publishes them is not installed."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        result.notes.append(f"first answer: not measured: {', '.join(missing)} not installed")
        return []
    with tempfile.TemporaryDirectory(prefix="sockd-first-", dir=DISK) as directory:
        scratch = Path(directory)
        images = make_images(run, scratch, result)
        for distance_ms in distances_ms:
            with origin(distance_ms, secrets.token_bytes(32)) as there:
                for image in images:
                    run.say(f"first answers of {image.name}, origin at {distance_ms:g} ms")
                    measure_one(image, there, scratch, f"{image.name}, {distance_ms:g} ms")
    return images


def note_missing_pulls(result: Result) -> None:
    """Note the tools that are not installed."""
    for name, tool in full_pulls.TOOLS.items():
        if tool.missing:
            result.notes.append(f"first answer: {PULL} {name} not measured: {', '.join(tool.missing)} not installed")


def make_images(run: Run, scratch: Path, result: Result) -> list[Image]:
    """Make the images that can be made here; without packages none."""
    try:
        packages = python_image.packages_layer(scratch / "packages.tar", HEAVY)
    except NoPackages as error:
        result.notes.append(f"first answer: not measured: {error}")
        return []
    if lacking := nydus.missing():
        result.notes.append(f"first answer: Nydus not measured: {', '.join(lacking)} not installed")
    layers = [python_image.interpreter_layer(scratch / "interpreter.tar"), packages]
    images = []
    for name, imports in run.pick(IMPORTS, {"handler": ""}).items():
        own = python_image.write_image(scratch / name, layers, name, python_image.program(imports))
        python_image.write_image(scratch / f"{name}-next", layers, name, python_image.program(imports, "{'build': 2}"))
        images.append(image := Image(name, scratch / name, scratch / f"{name}-next"))
        if not lacking:
            image.rafs.update(nydus.make_images([*layers, own], scratch / f"{name}-rafs", image.start))
    return images


class Measuring:
    """One image from one origin."""

    def __init__(self, image: Image, there: Origin, scratch: Path, kernel: str = "") -> None:
        """Args: kernel: the workers take the ways of this one; empty: the best."""
        self._image = image
        self._there = there
        self._scratch = scratch
        self._kernel = kernel
        self._reference, self._next = (f"{there.registry}/{image.name}:{tag}" for tag in (1, 2))
        self._fresh = 0

    def measure(self, run: Run, result: Result, case: str) -> None:
        size = self.publish()
        kept = {name: self.kept_worker(name) for name in KEPT}
        cases: dict[str, Callable[[], dict[str, float]]] = {
            **{f"{PULL} {name}": partial(self._pull, name) for name in full_pulls.installed()},
            PLAIN: lambda: self.from_nothing("plain", size),
            PROFILED: lambda: self.from_nothing("profiled", size),
            **{name: partial(self._changed, name, size) for name in CHANGES},
            **{name: partial(self.restarted, name, path) for name, path in kept.items()},
            **{name: partial(self._by_nydus, name, size) for name in self._image.rafs},
        }
        for rafs in self._image.rafs.values():
            nydus.publish(rafs, self._there)
        add_turns(result, case, cases, run.pick(7, 2))
        for path in kept.values():
            shutil.rmtree(path)

    def publish(self) -> int:
        """Have the registry and the store hold both builds, and the tenants their profiles; the size of one."""
        copy = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false"]
        for layout, reference in ((self._image.layout, self._reference), (self._image.next_layout, self._next)):
            subprocess.run([*copy, f"oci:{layout}", f"docker://{reference}"], check=True)
        size = self._publish("plain")
        self._publish("profiled", self._reference)
        self._publish("rebuilt", self._next)
        return size

    def _publish(self, tenant: str, profiled: str = "") -> int:
        """Have a worker put both builds into the store; the size of one. Args: profiled: the one to start, until its profile is
        kept."""
        with self._worker(f"publisher-{tenant}", tenant) as worker:
            for reference in (self._next, self._reference):
                deploy(worker, self._image.name, reference)
                if reference == profiled:
                    invoke(worker, self._image.name)
                    wait_until(worker, lambda: bool(profiles(worker)))
            return int(worker.json("images", "ls")[0]["size_bytes"])

    def kept_worker(self, name: str) -> Path:
        """The state directory of a worker that knows the function. Args: name: of a case of `KEPT`."""
        path = Path(tempfile.mkdtemp(dir=self._scratch))
        with self._restarted_worker(name, path) as worker:
            deploy(worker, self._image.name, self._reference)
            invoke(worker, self._image.name)
        self.restarted(name, path)  # cache nodes are filled beside a start
        return path

    def _restarted_worker(self, name: str, path: Path) -> AbstractContextManager[Worker]:
        tenant, settings = KEPT[name]
        return self._worker(name, tenant, path, **settings)

    @contextmanager
    def _worker(self, name: str, tenant: str, path: Path | None = None, **settings: Any) -> Iterator[Worker]:
        named = f"{name} {self._kernel}".strip().replace(",", "").replace(" ", "-")
        config: Config = {"images": self._there.settings(named, tenant=tenant, **settings)}
        if self._kernel:
            config = {**config, "sandbox": {"kernel": self._kernel}}
        with running_worker(config, state_dir=path) as worker:
            wait_until(worker, lambda: READY in worker.log.read_text())
            yield worker

    def from_nothing(self, tenant: str, size: int) -> dict[str, float]:
        """Metrics of a worker that has nothing. Args: size: of the image."""
        with self._fresh_worker(tenant) as worker:
            return self._first_answer(worker, self._reference, size)

    def _changed(self, case: str, size: int) -> dict[str, float]:
        with self._fresh_worker(CHANGES[case]) as worker:
            deploy(worker, self._image.name, self._reference)
            if case == CHANGE_STORED:  # as of a worker that was the first to deploy it, and has not started it
                profiles(worker)[0].unlink()
            found = self._first_answer(worker, self._next, size)
            for metric in (ANSWER, "deploy"):
                del found[metric]  # no import process waits so soon after the deploy before
            if (DERIVED in worker.log.read_text()) != (case in (CHANGE_DERIVED, CHANGE_STORED)):
                raise WorkerFailed(f"{case}: it started from another profile")
            return found

    def _fresh_worker(self, tenant: str) -> AbstractContextManager[Worker]:
        self._fresh += 1
        return self._worker(f"fresh-{self._fresh}", tenant)

    def _first_answer(self, worker: Worker, reference: str, size: int) -> dict[str, float]:
        self._there.bytes_moved()
        begun = time.perf_counter()
        deploy(worker, self._image.name, reference)
        deployed = time.perf_counter()
        invoke(worker, self._image.name)
        ended = time.perf_counter()
        moved = self._there.bytes_moved()
        times = {ANSWER: ended - begun, "deploy": deployed - begun, "request": ended - deployed}
        return {**{name: seconds * 1000 for name, seconds in times.items()}, "moved": 100 * moved / size}

    def restarted(self, name: str, path: Path) -> dict[str, float]:
        """Metrics of a worker that was started again. Args: name, path: of `kept_worker`."""
        if name in (L2, L2_PLAIN):
            shutil.rmtree(path / "images" / "cache", ignore_errors=True)
        forget_pages(path)
        with self._restarted_worker(name, path) as worker:
            return {"request": invoke(worker, self._image.name)}

    def _by_nydus(self, name: str, size: int) -> dict[str, float]:
        rafs, prefetch = self._image.rafs[name], name == nydus.PREFETCHED
        turn = nydus.first_answer(rafs, self._there, self._scratch, self._image.start, prefetch=prefetch)
        times = {ANSWER: turn.answer_s, "mount": turn.mount_s, "start": turn.start_s}
        return {**{name: seconds * 1000 for name, seconds in times.items()}, "moved": 100 * turn.moved_bytes / size}

    def _pull(self, tool: str) -> dict[str, float]:
        with (
            tempfile.TemporaryDirectory(dir=self._scratch) as directory,
            full_pulls.TOOLS[tool].ready(Path(directory)) as fetch,
        ):
            begun = time.perf_counter()
            files = fetch(self._reference)
            unpacked = time.perf_counter()
            first_answer_of(str(files.root), f"/{self._image.name}")
            ended = time.perf_counter()
        times = {ANSWER: ended - begun, **files.parts_s, "start": ended - unpacked}
        return {name: seconds * 1000 for name, seconds in times.items()}


def add_turns(result: Result, case: str, cases: Mapping[str, Callable[[], dict[str, float]]], rounds: int) -> None:
    """Run every case once per round, in an order drawn anew each round, and add a row for each of its metrics."""
    found: dict[tuple[str, str], list[float]] = {}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(cases), len(cases)):
            for metric, value in cases[name]().items():
                found.setdefault((name, metric), []).append(value)
    for (name, metric), samples in found.items():
        result.add(f"{case}: {name}", metric, "%" if metric.endswith("moved") else "ms", samples, tail=False)


def deploy(worker: Worker, name: str, reference: str) -> None:
    """By the management API, as a command has a start of its own. Raises: WorkerFailed."""
    settings = {"image": reference, "zygote": "none", **SETTINGS}
    with closing(UnixConnection(worker.state_dir / "sockd.sock")) as connection:
        connection.request("PUT", f"/functions/{name}", EMPTY_ZIP, {"x-sockd-overrides": json.dumps(settings)})
        last = json.loads(connection.getresponse().read().splitlines()[-1])
    if "result" not in last:
        raise WorkerFailed(str(last))


def invoke(worker: Worker, name: str) -> float:
    """A cold request; its ms."""
    with Client(worker.host, worker.port) as client:
        answer = client.invoke(name)
    if not answer.cold:
        raise WorkerFailed(f"{name} was warm")
    return answer.ms


def profiles(worker: Worker) -> list[Path]:
    """Startup profiles that a worker has."""
    return list((worker.state_dir / "images").glob("*/profile"))


def wait_until(worker: Worker, is_so: Callable[[], bool]) -> None:
    """Wait for something that a worker does by itself. Raises: WorkerFailed."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise WorkerFailed(f"what was waited for did not happen: {worker.log.read_text()[-300:]}")
        time.sleep(0.1)


def forget_pages(directory: Path) -> None:
    """Have the kernel drop what it has cached of these files (posix_fadvise(2))."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def first_answer_of(root: str, program: str) -> None:
    """Start a program in a directory as its root, give it one event, and wait for its answer."""
    answered = threading.Event()

    class RuntimeApi(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if answered.is_set():
                self.close_connection = True
            else:
                self._answer(b"{}")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(b"")
            answered.set()

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Lambda-Runtime-Aws-Request-Id", "1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), RuntimeApi) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        environment = {
            "PATH": "/opt/python/bin",
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{api.server_address[1]}",
        }
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(["/usr/sbin/chroot", root, program], env=environment, **quiet) as process:  # type: ignore[call-overload]
            if not answered.wait(60):
                raise WorkerFailed("the unpacked program did not answer")
            process.kill()
        api.shutdown()


def judge(result: Result, images: list[str]) -> None:
    """Aims, each at the distance that is worse for us."""

    def ratio(image: str, above: str, below: str, metric: str) -> list[float]:
        cases = [f"{image}, {distance:g} ms" for distance in DISTANCES_MS]
        return [result.row(f"{c}: {above}", metric).p50 / result.row(f"{c}: {below}", metric).p50 for c in cases]

    for image in images:
        if times := compare_with_pulls(result, image):
            least = ">= 20" if image == "handler" else ">= 3.5"
            result.aim(f"{image}: fastest full pull, times on demand with profile", min(times), least)
        for case in (L2, L2_PLAIN):
            result.aim(f"{image}: {case}, times unpacked", max(ratio(image, case, UNPACKED, "request")), "<= 1.3")
    for case in (PLAIN, PROFILED, CHANGE_STORED):
        moved = max(result.row(f"handler, {d:g} ms: {case}", "moved").p50 for d in DISTANCES_MS)
        result.aim(f"handler, {case}: bytes moved, % of the image", moved, "<= 6.5")


def compare_with_pulls(result: Result, image: str) -> list[float]:
    """Notes: how often a first answer with profile fits into a full pull with each tool, the fastest first.

    Returns: how often into that with the fastest, at each distance; nothing if no tool was measured."""
    fastest = []
    for case in (f"{image}, {distance:g} ms" for distance in DISTANCES_MS):
        ours = result.row(f"{case}: {PROFILED}", ANSWER).p50
        head = f"{case}: {PULL} "
        pulls = {
            row.case.removeprefix(head): row.p50
            for row in result.rows
            if row.case.startswith(head) and row.metric == ANSWER
        }
        ranked = sorted((ms / ours, tool) for tool, ms in pulls.items())
        if ranked:
            fastest.append(ranked[0][0])
            words = ", ".join(f"{times:.1f} with {tool}" for times, tool in ranked)
            result.notes.append(f"full pull of {case}, times the first answer with profile: {words}")
    return fastest


def compare_with_nydus(result: Result, images: list[str]) -> None:
    """Notes: our first answers over those of Nydus. Nydus's part has neither a deploy nor isolation."""
    for case in (f"{image}, {distance:g} ms" for image in images for distance in DISTANCES_MS):
        pairs = ((PLAIN, nydus.PLAIN), (PROFILED, nydus.PREFETCHED))
        ratios = [
            result.row(f"{case}: {ours}", ANSWER).p50 / result.row(f"{case}: {theirs}", ANSWER).p50
            for ours, theirs in pairs
        ]
        result.notes.append(
            f"first answer of {case}: {ratios[0]:.2f} of Nydus's; with profile {ratios[1]:.2f} of that with prefetch"
        )
