"""The daemon's handle of one Zygote: a running interpreter that forks sandboxes and child Zygotes on request.

Owns the wire, the pidfd and the cgroup, and is the first user of its block of uids (`block_users`).
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from sockd.base.errors import SandboxFailed
from sockd.isolation.farm.adoption import Adoption
from sockd.isolation.farm.block_users import BlockUsers
from sockd.isolation.farm.control import Answer, ControlWire, ZygoteGone, close_all, read_status, take_pidfd
from sockd.isolation.farm.farm import Farm, ForeignWire
from sockd.isolation.farm.imported import Imported, ImportFile, ImportRequest
from sockd.isolation.farm.uids import UidBlock
from sockd.isolation.farm.walled_networks import EndpointSource, Wall
from sockd.isolation.networks.endpoint import Endpoint
from sockd.isolation.roots.interpreter import Interpreter
from sockd.isolation.roots.program import OWN, Network
from sockd.isolation.roots.tmp_layer import TmpLayer
from sockd.linux.bpf.socket_counts import NO_FUNCTION
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import Cgroup

MAX_SOCKETS = 128
"""Most IP sockets that what it imports may have open."""
PIPE_BYTES = 64 << 10
MOST_WORDS_BYTES = 2000
"""At the end of what an interpreter says that does not become a Zygote."""
MAX_TASKS = 128
"""Most processes and threads of a Zygote with packages: its forks leave for cgroups of their own at once."""

MOST_PROCESSES = 1 << 22
"""The kernel has no higher number of a process (PID_MAX_LIMIT)."""

_numbers = itertools.count()


class Use(NamedTuple):
    """What the cgroup of a Zygote allows; None: as much as there is."""

    memory_bytes: int | None
    tasks: int | None
    cpus: float | None
    sockets: int
    socket_account: int = NO_FUNCTION


ROOT_USE = Use(None, None, None, MAX_SOCKETS)
ZYGOTE_USE = Use(None, MAX_TASKS, None, MAX_SOCKETS)
"""What one with packages may use, but for its memory."""


class Child(NamedTuple):
    """What a Zygote has forked."""

    pidfd: int
    number: object
    """In the farm, as the Zygote says."""


class NeverServed(ZygoteGone):
    """An interpreter ended before it was a Zygote."""

    def __init__(self, message: str, said: str) -> None:
        """Args: said: the end of what it printed."""
        super().__init__(message)
        self.said = said


class Zygote:
    """One Zygote. `close` ends it; its sandboxes live on."""

    def __init__(
        self,
        cgroups: CgroupPool,
        uids: UidBlock,
        on_end: Callable[[Zygote], None],
        parent: Zygote | None = None,
        on_gone: Callable[[Zygote], None] = lambda zygote: None,
    ) -> None:
        """Args: parent: of whose block the uids are; on_gone: called once, when it and all users of its uids are gone."""
        self.id = next(_numbers)
        self.uids = uids
        self.users: BlockUsers = BlockUsers(uids, None if parent is None else parent.users, partial(on_gone, self))
        self.pidfd = -1
        self._cgroups = cgroups
        self._on_end = on_end
        self._is_root = False
        self._closed = False
        self.cgroup: Cgroup | None = None
        self._wire: ControlWire | None = None
        self.tmp_layer: TmpLayer | None = None
        """The layer below the /tmp of a template's sandboxes; None: each start writes anew what is to be in its /tmp."""
        self._wall: Wall | None = None
        self._endpoints: EndpointSource | None = None
        self.interpreter = OWN
        """Id of the interpreter that it is."""
        self.farm: Farm | None = None
        """In which it and all its descendants are; None: not exec'd yet."""

    @classmethod
    async def exec_root(
        cls, farm: Farm, cgroups: CgroupPool, uids: UidBlock, on_end: Callable[[Zygote], None]
    ) -> Zygote:
        """A root Zygote: bare interpreter, standard library, exec'd by farm init."""
        zygote = cls(cgroups, uids, on_end)
        zygote._is_root, zygote.farm = True, farm
        with zygote._opening(ROOT_USE) as control:
            await farm.exec_zygote(control, zygote._procs())
        return zygote

    @classmethod
    async def exec_foreign(
        cls,
        farm: Farm,
        interpreter: Interpreter,
        cgroups: CgroupPool,
        uids: UidBlock,
        on_end: Callable[[Zygote], None],
        *,
        limit_bytes: int,
        deadline_s: float,
        wall: Wall | None,
        on_gone: Callable[[Zygote], None],
    ) -> Zygote:
        """The root Zygote of another interpreter: foreign code, so it is confined as a Zygote with packages, before its exec.

        Args: wall: it is behind this wall, with all its descendants; on_gone: called once, when it and its last sandbox and
        child
            Zygote are gone, also if this fails.
        Raises: SandboxFailed with the interpreter's own words; OSError."""
        zygote = cls(cgroups, uids, on_end, on_gone=on_gone)
        zygote.interpreter, zygote.farm, zygote._wall = interpreter.id, farm, wall
        words, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with zygote._opening(ZYGOTE_USE._replace(memory_bytes=limit_bytes)) as control:
                wired = ForeignWire(control.fileno(), theirs)
                zygote.pidfd = await farm.exec_foreign(
                    interpreter, uids, wired, zygote._procs(), is_walled=wall is not None
                )
                os.close(theirs)
                theirs = -1
                if wall is not None:
                    zygote._endpoints = wall.source(zygote.pidfd)
            await zygote._serves(interpreter, words, deadline_s)
        finally:
            os.close(words)
            if theirs >= 0:
                os.close(theirs)
        return zygote

    async def _serves(self, interpreter: Interpreter, words: int, deadline_s: float) -> None:
        """Wait until it answers. Raises: ZygoteGone; NeverServed with what it said on stderr."""
        try:
            await self.request("hello", (), deadline_s=deadline_s)
        except ZygoteGone as error:
            self.close()
            with suppress(BlockingIOError):
                said = os.read(words, PIPE_BYTES)[-MOST_WORDS_BYTES:].decode(errors="replace").strip()
                if said:
                    raise NeverServed(f"Python {interpreter.words} did not become a Zygote: {said}", said) from error
            raise

    async def spawn(
        self,
        *,
        limit_bytes: int,
        deadline_s: float,
        on_end: Callable[[Zygote], None],
        wall: Wall | None = None,
        is_standalone: bool = False,
    ) -> Zygote:
        """A child Zygote in a user namespace of its own.

        Args: wall: it is a root, which imports nothing, and behind this wall with all its descendants; is_standalone: nothing
            serves instead of it, so it gets a block of uids as a root does.
        Raises: NoCapacity, ZygoteGone, ZygoteRefused, OSError."""
        uids = self.uids.take_child(is_root=is_standalone or wall is not None)
        child = Zygote(self._cgroups, uids, on_end, self)
        return await self._spawn(child, ZYGOTE_USE._replace(memory_bytes=limit_bytes), deadline_s, wall)

    async def spawn_template(self, use: Use, *, deadline_s: float, on_end: Callable[[Zygote], None]) -> Zygote:
        """A child Zygote that is to become a template: held to what its function may use.

        Raises: NoCapacity: there are no uids for it; ZygoteGone, ZygoteRefused, OSError."""
        return await self._spawn(Zygote(self._cgroups, self.uids.take_run(), on_end, self), use, deadline_s, None)

    async def _spawn(self, child: Zygote, use: Use, deadline_s: float, wall: Wall | None) -> Zygote:
        child._wall = wall or self._wall
        child.interpreter, child.farm = self.interpreter, self.farm
        child._is_root = wall is not None
        with child._opening(use) as control:
            uids = child.uids
            made = await self._make_child(
                "spawn",
                (control.fileno(),),
                child._procs(),
                deadline_s=deadline_s,
                first_uid=uids.first,
                uid_count=uids.count,
                walled=child._wall is not None,
            )
            child.pidfd = made.pidfd
            if child._wall is not None:
                await child._settle(child._wall, deadline_s)
        return child

    async def _settle(self, wall: Wall, deadline_s: float) -> None:
        """Move it into an empty network namespace, which it may return to: its own user namespace owns it."""
        self._endpoints = wall.source(self.pidfd)
        home = await self._endpoints.home()
        try:
            await self.request("settle", (home,), deadline_s=deadline_s)
        finally:
            os.close(home)

    async def fork(
        self,
        uid: int,
        endpoint: Endpoint | None,
        warm: bool,
        fds: Sequence[int],
        procs: Sequence[int],
        *,
        deadline_s: float,
    ) -> Child:
        """A confined child; the caller owns its pidfd.

        Args: endpoint: from `endpoint`; fds: root, channel, output; procs: cgroup.procs files of its cgroups.
        Raises: ZygoteGone, ZygoteRefused, NotItsChild, OSError."""
        namespace = () if endpoint is None or endpoint.namespace is None else (endpoint.namespace,)
        return await self._make_child(
            "fork", fds, procs, namespace, deadline_s=deadline_s, uid=uid, network=bool(namespace), warm=warm
        )

    async def exit_status(self, child: Child, *, deadline_s: float) -> int | None:
        """How a child ended, as its parent says: this Zygote, or farm init once the Zygote has ended; None: unknown.

        For kernels that do not tell it by a pidfd. What a Zygote says is for the words of an error alone."""
        number = child.number
        if self.farm is None or type(number) is not int or not 0 < number < MOST_PROCESSES:
            return None
        with suppress(SandboxFailed):
            answer = await self.request("status", (), deadline_s=deadline_s, pid=number)
            close_all(answer.fds)
            if (status := read_status(answer.message)) is not None:
                return status
        return await self.farm.exit_status(number, deadline_s=deadline_s)

    @property
    def network(self) -> Network:
        """The network of the Zygote's sandboxes. A function that must not reach the host's is never served by a Zygote that
        is on it."""
        return "host" if self._wall is None else self._wall.network

    async def endpoint(self, network: Network) -> Endpoint | None:
        """The network of one sandbox, the caller's; None: the host's.

        Raises: SandboxFailed: its sandboxes have another kind; NoCapacity, NetworkUnavailable, OSError."""
        if network != self.network:
            raise SandboxFailed(f'{self.name} serves no function with network = "{network}"')
        return None if self._endpoints is None else await self._endpoints.endpoint()

    async def _make_child(
        self,
        op: str,
        fds: Sequence[int],
        procs: Sequence[int],
        last: Sequence[int] = (),
        *,
        deadline_s: float,
        **fields: object,
    ) -> Child:
        """Fork into these cgroups. A root Zygote runs no code but ours: its children join by themselves."""
        if self._is_root:
            given = (*fds, *procs, *last)
            answer = await self.request(op, given, deadline_s=deadline_s, waits=False, **fields)
            return Child(take_pidfd(answer.fds), answer.message.get("pid"))
        adoption = Adoption()
        try:
            given = (*fds, adoption.waiting, *last)
            answer = await self.request(op, given, deadline_s=deadline_s, waits=True, **fields)
            pidfd = take_pidfd(answer.fds)
            try:
                await adoption.adopt(pidfd, self.pidfd, procs, quick=self._cgroups.quick_moves)
            except BaseException:
                os.close(pidfd)
                raise
            return Child(pidfd, answer.message.get("pid"))
        finally:
            adoption.close()

    async def import_modules(self, request: ImportRequest, tree: int, *, deadline_s: float) -> Imported:
        """Import modules and settle for forking.

        Args: tree: a root of a Zygote (`Assembly.create_for_imports`), the caller's; the imports see it as their own.
        Raises: ZygoteGone, with the module, when an import killed it or hung; ZygoteRefused; OSError."""
        file = ImportFile(request)
        try:
            answer = await self.request("import", (file.fd, tree), deadline_s=deadline_s, bytes=file.request_bytes)
            close_all(answer.fds)
            return file.report(answer.message.get("bytes"))
        except ZygoteGone as error:
            error.module = file.last_begun()
            raise
        finally:
            file.close()

    def keep_tmp(self, layer: TmpLayer) -> None:
        """Have a layer under the /tmp of each of its sandboxes; it is closed when the last one is gone."""
        self.tmp_layer = layer
        self.users.keep_tree(layer.close)

    @property
    def name(self) -> str:
        return f"zygote-{self.id}"

    @property
    def alive(self) -> bool:
        return self._wire is not None and not self._wire.closed

    def check_alive(self) -> None:
        """Raises: ZygoteGone, if it has ended or was closed; it has no `pidfd` then."""
        if not self.alive or self.pidfd < 0:
            raise ZygoteGone("the Zygote has ended")

    @property
    def in_flight(self) -> int:
        """Forks and imports that it has been asked for and has not answered."""
        return self._wire.in_flight if self._wire else 0

    def memory_bytes(self) -> int:
        """What its cgroup is charged for: its own pages, and those that its forks share with it alone."""
        return self.cgroup.memory_bytes() if self.cgroup else 0

    def close(self) -> None:
        """Kill it and give everything back; its block of uids follows with its last sandbox. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        wire, self._wire = self._wire, None
        cgroup, self.cgroup = self.cgroup, None
        pidfd, self.pidfd = self.pidfd, -1
        if self._endpoints is not None:
            self._endpoints.close()
        if pidfd >= 0:
            os.close(pidfd)
        if wire is not None:
            wire.close()
        if cgroup is not None:
            self._cgroups.give_back(cgroup, self.users.release)
        else:
            self.users.release()

    @contextmanager
    def _opening(self, use: Use) -> Iterator[socket.socket]:
        """Makes its cgroup and its wire; the block is given the wire's other end, which is closed after it. If the block fails,
        or one of these steps, the Zygote is closed."""
        try:
            self.cgroup = self._cgroups.take()
            self.cgroup.limits.set(use.memory_bytes, use.tasks, use.cpus)
            self.cgroup.sockets.limit(use.sockets, use.socket_account)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._wire = ControlWire(ours, self._ended)
                yield theirs
        except BaseException:
            self.close()
            raise

    def request(
        self, op: str, fds: Sequence[int], *, deadline_s: float, **fields: object
    ) -> Coroutine[object, object, Answer]:
        """Send it a request (`protocol`) and wait for the answer. Raises: ZygoteGone, ZygoteRefused, OSError."""
        if self._wire is None:
            raise ZygoteGone("the Zygote is gone")
        return self._wire.request(op, fds, deadline_s=deadline_s, **fields)

    def _ended(self) -> None:
        self._on_end(self)
        self.close()

    def _procs(self) -> Sequence[int]:
        assert self.cgroup is not None
        return self.cgroup.procs_fds
