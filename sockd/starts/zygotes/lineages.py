"""The Zygotes of each lineage: a root that is made when a function needs it, and ends when none does, and its child Zygotes.

A lineage is an interpreter and a kind of network. The root of the worker's interpreter with the host's network is exec'd; those
behind walls are children of that root, in networks of their own (`sockd/isolation/farm/walled_networks.py`). Roots of other
interpreters are exec'd in farms of their own (`ForeignFarms`).

Owns the tasks that make roots. A root that ends is made again: at once if it is the worker's own, else for the next start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from sockd.base.config import ZygoteConfig
from sockd.base.errors import ChunkStoreFailed, Draining, SockdError
from sockd.base.uids import ROOT_UIDS
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.farm import Farm
from sockd.isolation.farm.uids import UidBlock
from sockd.isolation.farm.walled_networks import Wall
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.image_python import SCHEME
from sockd.isolation.roots.program import HOST_LINEAGE, OWN, Lineage, Network
from sockd.isolation.sandbox.foreign_farms import ForeignFarms
from sockd.isolation.sandbox.parts import Parts
from sockd.starts.zygotes.rate import RATE_TAU_S, DecayingRate
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_nodes import ZygoteNodes

REVIVALS = 3
"""How often a request waits for a new root Zygote, when one after the other ends."""
_log = logging.getLogger(__name__)


class Lineages:
    """The roots of one worker, and the lives of all its Zygotes. `open` first, `close` last."""

    def __init__(
        self,
        config: ZygoteConfig,
        parts: Parts,
        farm: Farm,
        walls: Mapping[Network, Wall],
        foreign: ForeignFarms,
        nodes: ZygoteNodes,
        *,
        base_uid: int,
    ) -> None:
        self._limit_bytes = config.memory_mb << 20
        self._parts = parts
        self._farm = farm
        self._walls = walls
        self._foreign = foreign
        self._nodes = nodes
        self._uids = UidBlock.of_host(base_uid, ROOT_UIDS)
        self.made: list[Callable[[ZygoteNode], None]] = []
        """Called with each root that was made after `open`."""
        self._reviving: dict[Lineage, asyncio.Task[None]] = {}
        self._failures: dict[Lineage, SockdError | OSError] = {}
        """Why the last root of a lineage could not be made; it was logged once."""
        self._users: Counter[Lineage] = Counter()
        self._closed = False
        if foreign is not None:
            foreign.retired.append(self.end_interpreter)

    async def open(self) -> None:
        """Exec the root Zygote. Raises: SandboxFailed."""
        zygote = await Zygote.exec_root(self._farm, self._parts.cgroups, self._uids, self.zygote_ended)
        self._nodes.add_root(HOST_LINEAGE, zygote)

    def expect(self, lineage: Lineage, *, at_once: bool = True) -> None:
        """A function is of this lineage: its root is made in the background, before the first start. `release` it.

        Args: at_once: false: not before the first start needs it."""
        self._users[lineage] += 1
        if at_once:
            self._expect_root(lineage)

    def release(self, lineage: Lineage) -> None:
        """Take back `expect`: the function is gone."""
        self._users[lineage] -= 1
        self.end_if_unused(lineage)

    def end_unused(self) -> None:
        """End roots without functions: the start of a function that was removed meanwhile has made them."""
        for lineage in [*self._nodes.roots]:
            self.end_if_unused(lineage)

    def end_if_unused(self, lineage: Lineage) -> None:
        """End all Zygotes of another interpreter than the worker's if it has no function left."""
        if lineage.interpreter == OWN or self._users[lineage] or self._closed:
            return
        for node in reversed(self._nodes.of(lineage)):
            self._nodes.remove(node)

    async def living_root(self, lineage: Lineage) -> None:
        """Wait for a root that is not there yet, or died; it is tried again where that failed, unless its image cannot be read.

        Raises: SockdError: why an interpreter that is not the worker's own has none."""
        for _ in range(REVIVALS):
            if lineage in self._nodes.roots or self._closed:
                return
            await asyncio.shield(self._begin_root(lineage))
            if isinstance(failure := self._failures.get(lineage), ChunkStoreFailed):
                raise failure.again()
        if isinstance(failure, SockdError) and lineage.interpreter != OWN:
            raise failure.again()

    async def why_no_root(self, lineage: Lineage) -> SockdError | OSError | None:
        """Why no root of a lineage could be made just now; None: it is there."""
        if lineage not in self._nodes.roots:
            await asyncio.shield(self._begin_root(lineage))
        return None if lineage in self._nodes.roots else self._failures.get(lineage) or Draining("the worker ends")

    async def spawn(self, parent: ZygoteNode) -> Zygote:
        """A new child Zygote of a node, not in the tree yet. Raises: SandboxFailed, NoCapacity, OSError."""
        return await self._spawn(parent)

    async def spawn_standalone(self, network: Network) -> Zygote:
        """A new child Zygote of a root of the worker's interpreter, which never is in the tree. Raises: as `spawn`."""
        await self.living_root(Lineage(network))
        return await self._spawn(self._nodes.root_of(Lineage(network)), is_standalone=True)

    async def _spawn(self, parent: ZygoteNode, wall: Wall | None = None, *, is_standalone: bool = False) -> Zygote:
        return await parent.zygote.spawn(
            limit_bytes=self._limit_bytes,
            deadline_s=self._parts.spawn_deadline_s,
            on_end=self.zygote_ended,
            wall=wall,
            is_standalone=is_standalone,
        )

    def may_serve(self, zygote: Zygote) -> bool:
        """Return False if the image of a Zygote is lost, so that only its sandboxes are left."""
        return zygote.interpreter == OWN or not self._foreign.is_retired(zygote)

    def end_interpreter(self, interpreter: str, error: SockdError) -> None:
        """End its Zygotes and spares: their image is lost. Other sandboxes live on; the next start makes a root."""
        for node in reversed([node for node in self._nodes.all if node.lineage.interpreter == interpreter]):
            if self._nodes.is_root(node):
                _log.warning("the root Zygote of %s is ended: %s", in_words(node.lineage), error)
            self._nodes.remove(node)

    def zygote_ended(self, zygote: Zygote) -> None:
        """A node's Zygote died or was given up: the next best serves, and a root is made anew."""
        for node in [node for node in self._nodes.all if node.zygote is zygote]:
            what = ", ".join(sorted(node.packages)) or "the standard library"
            _log.warning(
                "%s (%s) ended", node.id, what if node.imports else f"the root Zygote of {in_words(node.lineage)}"
            )
            self._nodes.remove(node)
            if not node.imports and node.lineage.interpreter == OWN:  # another is made when a function needs it
                self._expect_root(node.lineage)

    def close(self) -> None:
        """Make no further root. The Zygotes are the nodes' to end."""
        self._closed = True
        for task in self._reviving.values():
            task.cancel()

    async def _make_root(self, lineage: Lineage) -> None:
        """Raises: SandboxFailed, NoCapacity, OSError."""
        if lineage.interpreter != OWN:
            began_s = time.monotonic()
            root = self._nodes.add_root(lineage, await self._exec_foreign(lineage))
            self._note_foreign(root, began_s)
        elif lineage.network == "host":
            await self.open()
        else:
            await self._wall_in(lineage.network)

    async def _exec_foreign(self, lineage: Lineage) -> Zygote:
        """Start a root of an interpreter that is not the worker's own. Each of them is exec'd: one behind a wall is no fork
        of one that, as code of that interpreter, can reach the host's network."""
        wall = None if lineage.network == "host" else self._walls.get(lineage.network)
        if wall is None and lineage.network != "host":
            raise ZygoteGone(f'no function with network = "{lineage.network}" can be served')
        if self._foreign.is_short_of_uids:
            self._end_least_recently_used()
        return await self._foreign.exec_root(
            lineage.interpreter, wall, self.zygote_ended, limit_bytes=self._limit_bytes
        )

    def _end_least_recently_used(self) -> None:
        """End the Zygotes of another interpreter, so that its block of uids comes back; its next start makes them again."""
        foreign = [lineage for lineage in self._nodes.roots if lineage.interpreter != OWN]
        if foreign:
            used_s = {lineage: max(node.last_used_s for node in self._nodes.of(lineage)) for lineage in foreign}
            lineage = min(foreign, key=lambda each: used_s[each])
            _log.info("the Zygotes of %s end: other interpreters need their uids", in_words(lineage))
            for node in reversed(self._nodes.of(lineage)):
                self._nodes.remove(node)

    def _note_foreign(self, root: ZygoteNode, began_s: float) -> None:
        """What a root of another interpreter costs and saves, as the eviction policies see it."""
        now_s = time.monotonic()
        root.seconds_saved = now_s - began_s
        root.rate = DecayingRate(RATE_TAU_S, now_s=now_s, rate=1 / RATE_TAU_S)

    async def _wall_in(self, network: Network) -> None:
        """A root of the worker's interpreter behind a wall. Raises: SandboxFailed, NoCapacity, OSError."""
        if HOST_LINEAGE not in self._nodes.roots:
            await self.living_root(HOST_LINEAGE)
        if network not in self._walls:
            raise ZygoteGone(f'no function with network = "{network}" can be served')
        zygote = await self._spawn(self._nodes.root_of(HOST_LINEAGE), self._walls[network])
        self._nodes.add_root(Lineage(network), zygote)

    def _expect_root(self, lineage: Lineage) -> None:
        if lineage not in self._nodes.roots and not self._closed:
            self._begin_root(lineage)

    def _begin_root(self, lineage: Lineage) -> asyncio.Task[None]:
        """The task that makes a root."""
        reviving = self._reviving.get(lineage)
        if reviving is None or reviving.done():
            reviving = self._reviving[lineage] = asyncio.create_task(self._revive(lineage))
        return reviving

    async def _revive(self, lineage: Lineage) -> None:
        """Make a root Zygote; the other nodes never needed the old one."""
        try:
            await self._make_root(lineage)
            root = self._nodes.roots[lineage]
            for node in self._nodes.of(lineage):
                if node is not root:
                    node.parent = node.parent or root
            for listener in self.made:
                listener(root)
            self._failures.pop(lineage, None)
        except (SockdError, OSError) as error:
            is_known = str(error) == str(self._failures.get(lineage, ""))  # each start tries it anew
            if not is_known and not isinstance(error, Draining):
                _log.error("the root Zygote of %s cannot be started: %s", in_words(lineage), error)
            self._failures[lineage] = error


def in_words(lineage: Lineage) -> str:
    """A lineage, for people; an image by its digest."""
    scheme, _, name = lineage.interpreter.partition(":")
    if scheme == SCHEME:
        which = f"the image sha256:{name.partition('.')[0]}"
    else:
        which = f"Python {name}" if name else "the worker's Python"
    return which if lineage.network == "host" else f'{which} with network = "{lineage.network}"'
