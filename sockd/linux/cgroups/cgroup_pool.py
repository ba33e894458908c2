"""CgroupPool: idle cgroups, ready to be joined, so that no sandbox waits for one to be made.

Owns: every cgroup that is idle in it or was given back to it; a cgroup that was taken is the bounded's until then. Knows
nothing of sandboxes or of limits' values.

Making a cgroup costs 240 us and removing it 85, so they are used again: given back, a cgroup is killed at once and later,
in the background, waited for, scrubbed and kept, up to `size`. The pool makes new ones up to half of `size` only: if it
kept itself full, each cgroup that comes back would find no place.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sockd.linux.cgroups.tree import Cgroup, CgroupTree

_EMPTY_DEADLINE_S = 10.0
"""How long the killed may take to be gone; longer means stuck in the kernel (a dead disk or network file system), and is
logged at each turn."""

_RETRY_S = 0.1
"""How long after an error it is tried again to watch one."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CgroupPoolSnapshot:
    """The pool at one moment, and what it did so far."""

    size: int
    idle: int
    recycling: int
    """Given back and not yet idle or removed."""
    made: int
    reused: int
    missed: int
    """Taken when none was idle: their takers waited for the making."""
    stuck: int
    """Could not be removed; left to `CgroupTree.destroy_all`."""


class CgroupPool:
    """Up to `size` idle leaves `sandbox-N` of a tree. `take` and `give_back` never wait."""

    def __init__(self, tree: CgroupTree, size: int, *, quick_moves: bool = False) -> None:
        """
        Args:
            quick_moves: whether moving a task into one takes microseconds, also after a pause (`latency.favordynmods`)."""
        self.quick_moves = quick_moves
        self._tree = tree
        self._size = size
        self._idle: deque[Cgroup] = deque()
        self._recycling: set[asyncio.Task[None]] = set()
        # mkdir and rmdir of cgroups exclude each other in the kernel: more threads would only wait there.
        self._slow = asyncio.Lock()
        self._low = asyncio.Event()
        self._refilling: asyncio.Task[None] | None = None
        self._closed = False
        self._made = self._reused = self._missed = self._stuck = 0

    async def start(self) -> None:
        """Fill the pool, and keep it filled. Raises OSError: cgroups cannot be made; `aclose` is due all the same."""
        # Never cancelled: what a thread has made would be lost. The task looks at `_closed` instead.
        self._refilling = asyncio.create_task(self._fill(self._size), name="cgroup pool fill")
        await asyncio.shield(self._refilling)
        self._refilling = asyncio.create_task(self._refill(), name="cgroup pool refill")

    def take(self) -> Cgroup:
        """A prepared, empty cgroup with whatever limits; makes one on the spot if none is idle. Raises OSError from that."""
        if self._closed:
            raise RuntimeError("the cgroup pool is closed")
        if len(self._idle) <= self._size // 2:
            self._low.set()
        if self._idle:
            return self._idle.popleft()
        self._missed += 1
        return self._tree.cgroup(self._new_name())

    def give_back(self, cgroup: Cgroup, on_empty: Callable[[], None] | None = None) -> None:
        """Kill all processes in a cgroup that was taken; the pool disposes of it in the background.

        Args:
            on_empty: called once when the last process has gone, and not before: what those processes still use (a uid,
                memory) is given back there. It must not raise."""
        try:
            cgroup.kill_nowait()
        finally:
            task = asyncio.create_task(self._recycle(cgroup, on_empty), name=f"recycle {cgroup.name}")
            self._recycling.add(task)
            task.add_done_callback(self._recycling.discard)

    async def aclose(self) -> None:
        """Remove all that is idle or was given back, as far as it can be removed; the rest is `destroy_all`'s."""
        self._closed = True
        self._low.set()
        if self._refilling is not None:
            await asyncio.wait([self._refilling])
        if self._recycling:
            await asyncio.wait(self._recycling)
        while self._idle:
            await self._remove(self._idle.popleft())

    def snapshot(self) -> CgroupPoolSnapshot:
        """What is there now."""
        idle, recycling = len(self._idle), len(self._recycling)
        return CgroupPoolSnapshot(self._size, idle, recycling, self._made, self._reused, self._missed, self._stuck)

    def _new_name(self) -> str:
        self._made += 1
        return f"sandbox-{self._made}"

    async def _refill(self) -> None:
        while not self._closed:
            await self._low.wait()
            self._low.clear()
            try:
                await self._fill(self._size // 2)
            except OSError:
                # `take` raises the error to a start; each further one tries again.
                _log.exception("cgroups cannot be made ahead")

    async def _fill(self, target: int) -> None:
        while not self._closed and len(self._idle) + len(self._recycling) < target:
            async with self._slow:
                self._idle.append(await asyncio.to_thread(self._tree.cgroup, self._new_name()))

    async def _recycle(self, cgroup: Cgroup, on_empty: Callable[[], None] | None) -> None:
        clean = False
        if await self._emptied(cgroup):
            if on_empty is not None:
                on_empty()
            try:
                clean = await self._scrub(cgroup)
            except OSError:
                _log.exception("cgroup %s cannot be used again", cgroup.name)
        if clean and not self._closed and len(self._idle) < self._size:
            self._reused += 1
            self._idle.append(cgroup)
        else:
            await self._remove(cgroup)

    async def _scrub(self, cgroup: Cgroup) -> bool:
        if not cgroup.has_leftover:
            return cgroup.scrub()  # quicker than handing it to a thread
        async with self._slow:
            return await asyncio.to_thread(cgroup.scrub)

    async def _emptied(self, cgroup: Cgroup) -> bool:
        """Wait for the last process however long it takes, or until one deadline after the pool was closed."""
        while True:
            try:
                await cgroup.wait_empty(_EMPTY_DEADLINE_S)
                return True
            except TimeoutError as error:
                _log.error("killed, but: %s", error)
            except OSError:  # out of fds: what its processes hold must not be lost for that
                _log.exception("cgroup %s cannot be watched", cgroup.name)
                assert self._refilling is not None
                await asyncio.wait([self._refilling], timeout=_RETRY_S)  # it ends when the pool is closed
            if self._closed:
                return False

    async def _remove(self, cgroup: Cgroup) -> None:
        try:
            await self._remove_directories(cgroup)
        except OSError:
            self._stuck += 1
            _log.exception("cgroup %s stays behind", cgroup.name)
        finally:
            cgroup.close()

    async def _remove_directories(self, cgroup: Cgroup) -> None:
        try:
            async with self._slow:
                await asyncio.to_thread(cgroup.remove)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # A child that was forked but had not joined when its sandbox was given up came after it was found empty.
            cgroup.kill_nowait()
            await self._emptied(cgroup)
            await asyncio.to_thread(cgroup.remove)
