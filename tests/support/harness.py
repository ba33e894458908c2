"""What makes sandboxes: farm, root Zygote and pools put together as the daemon does, without HTTP or caches.

Owns an event loop that runs only inside `run`, so that tests are plain functions; between two calls the daemon's half of
everything stands still, and the sandboxes' half does not. `start` and the fixtures give back what they made in `close`.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import shutil
import textwrap
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from sockd.base.config import NetworkConfig
from sockd.isolation.farm.farm import Farm
from sockd.isolation.farm.imported import Imported, ImportRequest
from sockd.isolation.farm.namespace_maker import NamespaceMaker
from sockd.isolation.farm.uids import UidBlock
from sockd.isolation.farm.walled_networks import Wall
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.networks.networks import Networks
from sockd.isolation.roots import base
from sockd.isolation.roots.assembly import open_assembly
from sockd.isolation.roots.program import Limits, Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.lifecycle import State
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.isolation.sandbox.parts import Parts
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from sockd.linux.event_loop import EventLoop
from sockd.linux.latency import favordynmods
from sockd.linux.processes import pidfds
from sockd.linux.ways import Ways
from sockd_zygote import protocol
from tests.support import older_kernel
from tests.support.emulated import SLOWER

LONGEST_S = 100.0
"""Less than a test may take."""
MB = 1 << 20
DEADLINE_S = 40.0
"""For what takes less than a second on an idle host."""
MAX_ANSWER_BYTES = 1 * MB
BASE_UID = 0x20000000
ROOT_UIDS = 1 << 28
"""Three levels of Zygotes below the root, and all blocks of its user ids below the group ids of test runs (support/ledger)."""

Source = str | Callable[..., Any]
"""A handler: Python text that defines `handler`, or a function whose source is taken; it must need nothing around it."""
T = TypeVar("T")

_programs = itertools.count(1)
_roots = itertools.cycle(range(1, 6))


class Harness:
    """Everything below the caches, on one loop. `settle` after each test, `close` at the end."""

    def __init__(self, directory: Path, *, cgroup_pool: int = 0, roots: str = "auto", ways: Ways | None = None) -> None:
        """A pool of 0 keeps no cgroup between tests, so that a ledger sees the same before and after."""
        self.directory = directory
        self.ways = ways or Ways.find(older_kernel.release(), roots)
        self.packages = directory / "packages"
        self.packages.mkdir(parents=True)
        self.loop = EventLoop()
        self._close = ExitStack()
        self._per_test = ExitStack()
        self._close.callback(self.loop.close)
        with ExitStack() as undo:
            undo.enter_context(self._close)
            self.tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
            undo.callback(self.tree.destroy_all, 5)
            self.base = base.Base.build(directory / "base", base.plan(self.packages))
            undo.callback(self.base.close)
            self.run(self._start(cgroup_pool))
            undo.callback(lambda: self.run(self._stop()))
            self._close = undo.pop_all()

    async def _start(self, cgroup_pool: int) -> None:
        self.pool = CgroupPool(self.tree, cgroup_pool, quick_moves=favordynmods.is_shown())
        await self.pool.start()
        self.ended: list[str] = []
        """What ended by itself: "farm", or a Zygote's name."""
        self.farm = await Farm.start(self.base, self.tree.cgroup("farm"), lambda: self.ended.append("farm"), self.ways)
        self.budget = MemoryBudget(4096 * MB)
        self.assembly = open_assembly(self.ways, self.base)
        pools = self.assembly, self.pool, self.budget, self.farm.release
        self.parts = Parts(*pools, MAX_ANSWER_BYTES, spawn_deadline_s=DEADLINE_S, ways=self.ways)
        self.networks = Networks(NetworkConfig(least_pool=0, pool=0), "", self.budget.reserve_nowait)
        self.namespaces = NamespaceMaker()
        self.root = await self._exec_root(0)
        wall = Wall("none", self.networks, self.namespaces)
        self.walled = await self.root.spawn(
            limit_bytes=512 * MB, deadline_s=DEADLINE_S, on_end=self._note_end, wall=wall
        )

    async def _stop(self) -> None:
        self.walled.close()
        self.root.close()
        await self.networks.aclose()
        await self.namespaces.aclose()
        self.assembly.close()
        await self.farm.close()
        await self.pool.aclose()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the daemon's loop until this is done. Raises: TimeoutError: uvloop goes on when a signal ends a test."""

        async def bounded() -> T:
            async with asyncio.timeout(LONGEST_S):
                return await work

        return self.loop.run_until_complete(bounded())

    def call(self, work: Callable[[], T]) -> T:
        """Do something that needs a running loop, without waiting for anything."""

        async def do() -> T:
            return work()

        return self.run(do())

    def settle(self) -> None:
        """Give back all that a test has started, and wait until it is gone."""
        self._per_test.close()
        self.run(self._settled())
        assert self.budget.used == 0
        assert uids_in_use(self.root) == 0

    async def _settled(self) -> None:
        while self.pool.snapshot().recycling:
            recycling = [task for task in asyncio.all_tasks() if task.get_name().startswith("recycle")]
            await asyncio.gather(*recycling, asyncio.sleep(0))
        self.networks.adjust()

    def close(self) -> None:
        self._per_test.close()
        self._close.close()

    # -- Zygotes

    async def new_root(self) -> Zygote:
        """Another root Zygote in the same farm, with a block of uids of its own; the caller closes it."""
        return await self._exec_root(next(_roots))

    async def _exec_root(self, number: int) -> Zygote:
        block = UidBlock.of_host(BASE_UID + number * ROOT_UIDS, ROOT_UIDS)
        return await Zygote.exec_root(self.farm, self.pool, block, self._note_end)

    def spawn(self, parent: Zygote | None = None, modules: Sequence[str] = (), **options: Any) -> Zygote:
        """A child Zygote, until the end of the test, that has imported these modules from the package store."""
        zygote = self.run(
            (parent or self.root).spawn(limit_bytes=512 * MB, deadline_s=DEADLINE_S, on_end=self._note_end)
        )
        self._per_test.callback(self.call, zygote.close)
        if modules:
            imported = self.import_modules(zygote, modules, **options)
            assert not imported.failed, imported
        return zygote

    def import_modules(self, zygote: Zygote, modules: Sequence[str], *, deadline_s: float = DEADLINE_S) -> Imported:
        """Import modules; every distribution of the store is on the path."""
        paths = [f"/packages/{path.name}" for path in sorted(self.packages.iterdir())]
        root = self.run(self.assembly.create_for_imports(self.limits(), zygote.pidfd))
        try:
            request = ImportRequest(paths=paths, modules=modules)
            return self.run(zygote.import_modules(request, root.fd, deadline_s=deadline_s))
        finally:
            root.close()

    def add_package(self, name: str, files: Mapping[str, str]) -> str:
        """Put a distribution into the package store until the end of the test; its path in a sandbox."""
        directory = self.packages / name
        write_files(directory, files)
        self._per_test.callback(shutil.rmtree, directory)
        return f"/packages/{name}"

    def _note_end(self, zygote: Zygote) -> None:
        self.ended.append(zygote.name)

    # -- sandboxes

    def limits(self, **changes: Any) -> Limits:
        """Small limits, but for what is said otherwise."""
        values = {"memory_bytes": 128 * MB, "pids": 64, "cpus": 1.0, "tmp_bytes": 16 * MB, "tmp_inodes": 256}
        return Limits(**{**values, **changes})

    def program(
        self,
        source: Source,
        *,
        handler: str = "",
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        paths: Sequence[str] = (),
        timeout_s: float = 10 * SLOWER,
        init_timeout_s: float = 10 * SLOWER,
        log_bytes: int = 64 * 1024,
        open_files: int = 256,
        **limits: Any,
    ) -> Program:
        """A function's code, published until the end of the test, and what a sandbox must know to be it."""
        text, name = read_source(source)
        code = self.directory / f"code-{next(_programs)}"
        write_files(code, {"f.py": text, **(files or {})})
        init = {
            "name": "f",
            "version": "1",
            "memory_mb": 128,
            "handler": handler or f"f:{name}",
            "entry_file": "",
            "open_files": open_files,
            "code": "/var/task",
            "env": dict(env or {}),
            "paths": list(paths),
            "pth": [],
            "max_answer_bytes": MAX_ANSWER_BYTES,
        }
        program = Program(
            code,
            protocol.encode_init(init),
            self.limits(**limits),
            init_timeout_s=init_timeout_s,
            timeout_s=timeout_s,
            log_bytes=log_bytes,
        )
        self._per_test.callback(program.close)
        return program

    def start(
        self, source: Source | Program, *, zygote: Zygote | None = None, spare: bool = False, **options: Any
    ) -> Running:
        """A sandbox that becomes a function with its first request; there until the end of the test."""
        program = source if isinstance(source, Program) else self.program(source, **options)
        forking = self.fork(program.limits, zygote=zygote, program=None if spare else program)
        running = Running(self, self.run(forking), program)
        self._per_test.callback(running.destroy)
        return running

    async def fork(self, limits: Limits, *, zygote: Zygote | None = None, program: Program | None = None) -> Sandbox:
        """A confined child that waits for a function, or a spare; the caller destroys it."""
        reservation = await self.reserve(limits)
        zygote = zygote or (self.root if limits.network == "host" else self.walled)
        return await Sandbox.fork(self.parts, zygote, limits, reservation, program)

    async def reserve(self, limits: Limits) -> Reservation:
        return await self.budget.reserve(limits.memory_bytes, deadline_s=1)

    def reply(self, source: Source, event: object = None, **options: Any) -> Reply:
        """What a new sandbox replies to one request; it is destroyed."""
        running = self.start(source, **options)
        try:
            return running.request(event)
        finally:
            running.destroy()

    def answer(self, source: Source, event: object = None, **options: Any) -> Any:
        """What the handler returned to one request in a new sandbox."""
        return read_answer(self.reply(source, event, **options))


class Running:
    """A sandbox that is a function, for a test to talk to without await."""

    def __init__(self, harness: Harness, sandbox: Sandbox, program: Program) -> None:
        self.harness = harness
        self.sandbox = sandbox
        self._program = program

    def request(self, event: object = None) -> Reply:
        return self.harness.run(self.send(event))

    async def send(self, event: object = None) -> Reply:
        """One request; the first comes with the code, as nothing may come between the two."""
        if self.sandbox.program is None:
            self.sandbox.become(self._program)
        return await self.sandbox.request(uuid.uuid4().bytes, json.dumps(event).encode())

    def answer(self, event: object = None) -> Any:
        return read_answer(self.request(event))

    @property
    def pid(self) -> int:
        """Its process, as the host sees it."""
        return pidfds.pid(self.sandbox.process.pidfd)

    def destroy(self) -> None:
        self.harness.call(self.sandbox.destroy)

    @property
    def dead(self) -> bool:
        return self.sandbox.lifecycle.state is State.DEAD


def harness_fixture(directory: Path, roots: str = "auto", ways: Ways | None = None) -> Iterator[Harness]:
    """What a session-scoped fixture yields."""
    harness = Harness(directory, roots=roots, ways=ways)
    try:
        yield harness
    finally:
        harness.close()


def read_source(source: Source) -> tuple[str, str]:
    """(module text, name of the handler)."""
    if isinstance(source, str):
        return textwrap.dedent(source), "handler"
    return "from __future__ import annotations\n" + textwrap.dedent(inspect.getsource(source)), source.__name__


def read_answer(reply: Reply) -> Any:
    assert reply.error is None, (reply.error, getattr(reply.error, "stack_trace", None), reply.log)
    return json.loads(reply.body)


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def uids_in_use(zygote: Zygote) -> int:
    """How many uids of its block are a sandbox's."""
    block = zygote.uids
    return block._next_uid - 1 - len(block._free_uids)


def status_of(pid: int) -> dict[str, str]:
    """/proc/<pid>/status, as the host sees it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def namespaces_of(pid: int | str) -> dict[str, str]:
    """The namespaces of a process by kind."""
    return {
        kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("mnt", "pid", "user", "ipc", "uts", "net", "cgroup")
    }
