"""Measures the agent of images on this host, beside a plain file: what `sockd bench images` reports of it.

    python -m benchmarks.instruments.agent_trial DIRECTORY [ROUNDS]

DIRECTORY is on the disk to be measured, and empty. One JSON object a line on stdout: {"case", "metric", "unit", "samples"}.
The agent, its jail and its keeper are the worker's own; there is no daemon. The cases take turns within each round.

    native          a file of the disk's file system
    erofs           the same file in an EROFS image that is a plain file
    agent           the same file in the same image, served by the agent from its L1 cache

`cold`: not in the page cache, except for the L1 cache's file, which is (its reads are the agent's). Random reads are of 4 KiB,
with read-ahead switched off. Needs root.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import stat
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sockd.base.config import MB
from sockd.base.file_tree import Inode
from sockd.images.agent.agent_wire import SourceSettings
from sockd.images.agent_keeper import agent_link
from sockd.images.agent_keeper.agent_link import AgentSettings
from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store_settings import StoreSettings
from sockd.images.chunks.upload import upload
from sockd.isolation.roots.jail import built, jail_on
from sockd.linux import mounts
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from sockd.linux.confined.confined_process import Jail
from sockd.linux.erofs.layout import Layout
from sockd.linux.erofs.mounting import mount_image

FILE_BYTES = 48 * MB
FILE = "data"
READ_BYTES = 4096
READS_OF_A_ROUND = 300
SEQUENTIAL_BYTES = 128 << 10
UID = 0x0FFFFD00
ROOT, SALT = "r1", b"trial"
STANDBY_S = 3.0
"""Until the next process stands by."""
KILLS = 4
"""Fewer than the keeper's limit."""
Measure = Callable[[], list[float]]


class _Data:
    """The file's bytes, as the one layer of an image."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, layer: int, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


async def main(directory: Path, rounds: int) -> None:
    """Measure, and print."""
    mounts.enter_private_namespace()
    data = random.Random(1).randbytes(FILE_BYTES)
    _write(directory / FILE, [data])
    tree = {
        "": Inode(mode=stat.S_IFDIR | 0o755),
        FILE: Inode(mode=stat.S_IFREG | 0o644, size=len(data), layer=0, offset=0),
    }
    layout = Layout.plan(tree)
    plain = directory / "plain.erofs"
    _write(plain, layout.chunks(_Data(data)))
    store = DirectoryStore.create(directory / "store")
    uploaded = upload(layout.chunks(_Data(data)), store, root=ROOT, salt=SALT)
    manifest = Manifest("trial", uploaded.size_bytes, ROOT, uploaded.chunks)
    async with AsyncExitStack() as stack:
        jail = await stack.enter_async_context(_jail(directory / "jail"))
        source = SourceSettings(store=StoreSettings(url=str(directory / "store")), l1_bytes=4 * FILE_BYTES)
        agent = await ImageAgent.start(jail, AgentSettings(uid=UID, source=source), directory / "agent")
        stack.push_async_callback(agent.aclose)
        path = await agent.open(manifest, metadata_chunks=layout.metadata_chunks)
        files = {"native": directory / FILE}
        for case, image in (("erofs", str(plain)), ("agent", path)):
            mount = await asyncio.to_thread(mount_image, image)
            stack.callback(os.close, mount)
            files[case] = Path(f"/proc/self/fd/{mount}/{FILE}")
        await asyncio.to_thread(_reads, files, plain, rounds)
        await _restarts(agent, path)


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """On the disk, so that the page cache can forget it."""
    with path.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


@asynccontextmanager
async def _jail(path: Path) -> AsyncIterator[Jail]:
    """What the agent's process stands on, as the worker makes it."""
    async with AsyncExitStack() as stack:
        cgroups = CgroupTree.create(Hierarchies.detect(), f"sockd-trial-{uuid.uuid4().hex[:8]}")
        stack.callback(cgroups.destroy_all, 10)
        pool = CgroupPool(cgroups, 0)
        await pool.start()
        stack.push_async_callback(pool.aclose)
        places = agent_link.places()
        stack.callback(built(path, places).close)
        yield jail_on(path, places, pool.take, pool.give_back)


def _reads(files: dict[str, Path], plain: Path, rounds: int) -> None:
    """All reads, the cases in turns. The first round fills the L1 cache and is not counted."""
    opened = {case: os.open(path, os.O_RDONLY | os.O_CLOEXEC) for case, path in files.items()}
    below = os.open(plain, os.O_RDONLY | os.O_CLOEXEC)
    source = random.Random(2)
    found: dict[tuple[str, str, str], list[float]] = {}
    try:
        for turn in range(rounds + 1):
            for case, fd in opened.items():
                offsets = [source.randrange(FILE_BYTES // READ_BYTES) * READ_BYTES for _ in range(READS_OF_A_ROUND)]
                _forget(fd, below)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                cold = [_timed_read(fd, at, READ_BYTES) for at in offsets]
                warm = [_timed_read(fd, at, READ_BYTES) for at in offsets]
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)
                _forget(fd, below)
                begun = time.perf_counter()
                for at in range(0, FILE_BYTES, SEQUENTIAL_BYTES):
                    os.pread(fd, SEQUENTIAL_BYTES, at)
                rate = FILE_BYTES / MB / (time.perf_counter() - begun)
                if turn:
                    found.setdefault((case, "4 KiB cold", "us"), []).extend(cold)
                    found.setdefault((case, "4 KiB warm", "us"), []).extend(warm)
                    found.setdefault((case, "sequential cold", "MB/s"), []).append(rate)
    finally:
        for fd in (*opened.values(), below):
            os.close(fd)
    for (case, metric, unit), samples in found.items():
        _say(case, metric, unit, samples)


def _forget(*fds: int) -> None:
    """Drop what the page cache has of these files."""
    for fd in fds:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _timed_read(fd: int, offset: int, size: int) -> float:
    begun = time.perf_counter()
    os.pread(fd, size, offset)
    return (time.perf_counter() - begun) * 1e6


async def _restarts(agent: ImageAgent, path: str) -> None:
    """How long a reader waits whose agent is killed: the longest read of 4 KiB around each kill."""
    samples = []
    for _ in range(KILLS):
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=STANDBY_S)
        reads, killed, enough = threading.Event(), threading.Event(), threading.Event()
        reader = asyncio.ensure_future(asyncio.to_thread(_longest_read, path, reads, killed, enough))
        await asyncio.to_thread(reads.wait)
        starts = agent.starts
        os.kill(_child_of(agent.pid), signal.SIGKILL)
        killed.set()
        while agent.starts == starts:
            await agent.counters()
        await agent.counters()
        enough.set()
        samples.append(await reader)
    _say("agent", "longest read when it is killed", "ms", samples)


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _longest_read(path: str, reads: threading.Event, killed: threading.Event, enough: threading.Event) -> float:
    source, longest = random.Random(3), 0.0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while not enough.is_set():
            took = _timed_read(fd, source.randrange(FILE_BYTES // READ_BYTES) * READ_BYTES, READ_BYTES) / 1000
            reads.set()
            if killed.is_set():
                longest = max(longest, took)
    finally:
        os.close(fd)
    return longest


def _say(case: str, metric: str, unit: str, samples: list[float]) -> None:
    print(json.dumps({"case": case, "metric": metric, "unit": unit, "samples": samples}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10))
