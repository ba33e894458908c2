"""The Zygotes of images' programs: one for each kind of network, which has imported what serving a program takes.

They are not nodes of the tree: they have no packages, serve every image alike, and are neither learned nor evicted (10 MB each).
Made when a function first needs one, and again when it has ended. Owns them.
"""

from __future__ import annotations

import logging
from functools import partial

from sockd.base.errors import SandboxFailed, SockdError
from sockd.base.single_flight import SingleFlight
from sockd.isolation.farm.imported import ImportRequest
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import Network, Program
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.zygotes.zygote_tree import ZygoteTree

REQUEST = ImportRequest(paths=[], modules=("sockd_zygote.program_imports",), ours=True)
_log = logging.getLogger(__name__)


class ProgramZygotes:
    """`fork`, until `aclose`."""

    def __init__(self, tree: ZygoteTree, *, deadline_s: float) -> None:
        """Args: deadline_s: of the imports."""
        self._tree = tree
        self._deadline_s = deadline_s
        self._zygotes: dict[Network, Zygote] = {}
        self._making: SingleFlight[Network, Zygote] = SingleFlight()

    async def expect(self, network: Network) -> None:
        """A function with such a network is there: make its Zygote before the first start. A failure is the start's to tell."""
        try:
            await self._serving(network)
        except (SockdError, OSError, TimeoutError) as error:
            _log.warning("no Zygote for programs of images: %s", error)

    async def fork(self, program: Program, reservation: Reservation) -> Sandbox:
        """A sandbox for a program whose image is mounted; it owns the reservation, also when this fails.

        Raises: ZygoteGone, SandboxFailed, NoCapacity, OSError."""
        try:
            zygote = await self._serving(program.limits.network)
        except BaseException:
            reservation.close()
            raise
        return await self._tree.children.fork_from(zygote, program, reservation)

    async def aclose(self) -> None:
        """End them; sandboxes live on."""
        await self._making.aclose()
        for zygote in self._zygotes.values():
            zygote.close()
        self._zygotes.clear()

    async def _serving(self, network: Network) -> Zygote:
        zygote = self._zygotes.get(network)
        if zygote is not None and zygote.alive and zygote.uids.has_uid:
            return zygote
        return await self._making.do(network, partial(self._make, network))

    async def _make(self, network: Network) -> Zygote:
        zygote = await self._tree.lineages.spawn_standalone(network)
        try:
            imported = await self._tree.children.import_modules(zygote, REQUEST, deadline_s=self._deadline_s)
            if imported.failed or imported.left or imported.threads > 1:
                raise SandboxFailed(f"the Zygote of images' programs: {imported.failed or imported.left or 'threads'}")
        except BaseException:
            zygote.close()
            raise
        old, self._zygotes[network] = self._zygotes.get(network), zygote
        if old is not None:
            old.close()
        return zygote
