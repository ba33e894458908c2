"""Nydus as a peer: nydusd serves the same files from the same S3 through FUSE, from nothing to the first answer.

Optional: `nydusd` and `nydus-image` are searched in the directory SOCKD_NYDUS, or on PATH without it.
`cargo install --locked nydus-rs` builds them (without --locked, version 2.2.0 does not compile).
A turn begins with an empty cache: the bootstrap is fetched, nydusd is started, and the program is started in its mount, without
isolation. RAFS version, chunk size, compression and the sizes of requests are Nydus's defaults.

For prefetch, nydusd records which files a start reads (`access_pattern`), and the image is made again with their list: their data
come first in the blob, and nydusd fetches them, and nothing else, as soon as it is started.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.unix_connection import UnixConnection
from benchmarks.image_parts import oci_layout
from benchmarks.image_parts.origin import BUCKET, Origin
from benchmarks.s3.client import Client
from benchmarks.s3.process import REGION

TOOLS = ("nydusd", "nydus-image")
DIRECTORY = "SOCKD_NYDUS"
PLAIN, PREFETCHED = "nydus", "nydus, with prefetch"
PREFIX = "nydus/"
PATTERN = "/api/v1/metrics/pattern"
DEADLINE_S = 60.0
INODE = (1 << 56) - 1
"""The bits of an inode's number in the mount that are the image's; the rest is nydusd's number of the image."""
Start = Callable[[str], None]
"""Start the image's program with a directory as its root, and wait for its first answer."""


class NydusFailed(Exception):
    """nydusd did not mount, and the text is the end of its log; or it did not record a start."""


@dataclass(frozen=True, slots=True)
class Rafs:
    """An image as Nydus has it."""

    bootstrap: Path
    blob: Path


@dataclass(frozen=True, slots=True)
class Turn:
    """What it took from nothing."""

    answer_s: float
    mount_s: float
    """The seconds of the mount, until there are files."""
    start_s: float
    """The rest."""
    moved_bytes: int
    """From the store, until the answer."""


def missing() -> list[str]:
    """The programs that are not installed."""
    return [tool for tool in TOOLS if _found(tool) is None]


def make_images(layers: Iterable[Path], directory: Path, start: Start) -> dict[str, Rafs]:
    """By case. Args: layers: without whiteouts. directory: new."""
    with tempfile.TemporaryDirectory(dir=directory.parent) as rootfs:
        oci_layout.unpack(layers, Path(rootfs))
        plain = _make(rootfs, directory / "plain", [])
        read = files_of_a_start(plain, start)
        return {PLAIN: plain, PREFETCHED: _make(rootfs, directory / "prefetched", read)}


def files_of_a_start(image: Rafs, start: Start) -> list[str]:
    """The files that nydusd is asked for, as names in the image."""
    backend = {"type": "localfs", "config": {"dir": str(image.blob.parent)}}
    with mounted(image.bootstrap, backend, record=True) as (mount, api):
        start(str(mount))
        with closing(UnixConnection(api)) as connection:
            connection.request("GET", PATTERN)
            pattern = json.loads(connection.getresponse().read())
        names = {path.lstat().st_ino & INODE: f"/{path.relative_to(mount)}" for path in mount.rglob("*")}
    return names_read(pattern, names)


def names_read(pattern: Iterable[dict[str, Any]], names: dict[int, str]) -> list[str]:
    """Return the names of nydusd's records that are files with a name, in the order of their first reads. Raises:
    NydusFailed."""

    def first_read(record: dict[str, Any]) -> tuple[int, int]:
        return record["first_access_time_secs"], record["first_access_time_nanos"]

    read = [names[record["ino"]] for record in sorted(pattern, key=first_read) if record["ino"] in names]
    if not read:
        raise NydusFailed("nydusd recorded no file that was read")
    return read


def publish(image: Rafs, there: Origin) -> None:
    """Have the store hold an image."""
    for path, key in ((image.bootstrap, _bootstrap_key(image)), (image.blob, PREFIX + image.blob.name)):
        there.client.put(BUCKET, key, path.read_bytes())


def first_answer(image: Rafs, there: Origin, scratch: Path, start: Start, *, prefetch: bool) -> Turn:
    """From nothing: the bootstrap, nydusd, the program. Raises: NydusFailed."""
    there.bytes_moved()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        bootstrap = Path(directory) / "bootstrap"
        with Client(there.store, there.server.credentials) as client:
            bootstrap.write_bytes(client.get(BUCKET, _bootstrap_key(image)))
        with mounted(bootstrap, backend_of(there), prefetch=prefetch) as (mount, _):
            ready = time.perf_counter()
            start(str(mount))
            ended = time.perf_counter()
            moved = there.bytes_moved()
    return Turn(ended - begun, ready - begun, ended - ready, moved)


def backend_of(there: Origin) -> dict[str, Any]:
    """The store as nydusd's configuration names it."""
    scheme, _, endpoint = there.store.partition("://")
    bucket = {
        "scheme": scheme,
        "endpoint": endpoint,
        "region": REGION,
        "bucket_name": BUCKET,
        "object_prefix": PREFIX,
        "access_key_id": there.server.access_key,
        "access_key_secret": there.server.secret_key,
    }
    return {"type": "s3", "config": bucket}


def settings(backend: dict[str, Any], cache: Path, *, prefetch: bool, record: bool) -> dict[str, Any]:
    """nydusd's configuration; what is not named has its default."""
    return {
        "device": {"backend": backend, "cache": {"type": "blobcache", "config": {"work_dir": str(cache)}}},
        "mode": "direct",
        "iostats_files": record,
        "access_pattern": record,
        # With `prefetch_all` nydusd fetches the whole blob.
        "fs_prefetch": {"enable": prefetch, "prefetch_all": False},
    }


@contextmanager
def mounted(
    bootstrap: Path, backend: dict[str, Any], *, prefetch: bool = False, record: bool = False
) -> Iterator[tuple[Path, Path]]:
    """A mount of nydusd with an empty cache, and its API's socket. Raises: NydusFailed."""
    with tempfile.TemporaryDirectory(dir=bootstrap.parent) as directory:
        top = Path(directory)
        mount, cache, config, log = (top / name for name in ("mount", "cache", "config.json", "log"))
        mount.mkdir()
        cache.mkdir()
        config.write_text(json.dumps(settings(backend, cache, prefetch=prefetch, record=record)))
        command = [str(_found("nydusd")), f"--config={config}", f"--bootstrap={bootstrap}", f"--mountpoint={mount}"]
        command += [f"--apisock={top}/api", "--log-level=warn", "--rlimit-nofile=0"]  # 0: as it is
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                if not _is_mounted(process, mount):
                    raise NydusFailed(log.read_text(errors="replace")[-500:])
                yield mount, top / "api"
            finally:
                process.send_signal(signal.SIGTERM)  # it unmounts
                process.wait(DEADLINE_S)


def _is_mounted(process: subprocess.Popen[bytes], mount: Path) -> bool:
    """Wait for it; false: the process ended, or it takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    with open("/proc/self/mountinfo") as mounts:
        poll = select.poll()
        poll.register(mounts, select.POLLPRI)
        poll.register(pidfd := os.pidfd_open(process.pid), select.POLLIN)
        try:
            while not os.path.ismount(mount):
                events = dict(poll.poll(max(0, deadline - time.monotonic()) * 1000))
                if not events or pidfd in events:
                    return False
        finally:
            os.close(pidfd)
    return True


def _make(rootfs: str, directory: Path, prefetched: Sequence[str]) -> Rafs:
    directory.mkdir(parents=True)
    command = [str(_found("nydus-image")), "create", f"--bootstrap={directory}/bootstrap", f"--blob-dir={directory}"]
    command += ["--prefetch-policy=fs"] if prefetched else []
    subprocess.run([*command, rootfs], input="\n".join(prefetched), text=True, capture_output=True, check=True)
    (blob,) = (path for path in directory.iterdir() if path.name != "bootstrap")
    return Rafs(directory / "bootstrap", blob)


def _bootstrap_key(image: Rafs) -> str:
    return f"{PREFIX}{image.blob.name}.bootstrap"


def _found(tool: str) -> str | None:
    return shutil.which(tool, path=os.environ.get(DIRECTORY))
