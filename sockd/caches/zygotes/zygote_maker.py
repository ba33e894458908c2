"""Makes one Zygote: fork, import, check, and try it, before it may serve.

Owns a Zygote until it is a node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from sockd.caches.packages.distribution import SANDBOX_STORE, in_order
from sockd.caches.packages.provided_names import Provided
from sockd.caches.zygotes import canary, selection, standard_library
from sockd.caches.zygotes.import_profile import ImportProfile
from sockd.caches.zygotes.rate import RATE_TAU_S, DecayingRate
from sockd.caches.zygotes.soundness import OPEN_FILES, Preimported
from sockd.caches.zygotes.zygote_node import ZygoteNode
from sockd.caches.zygotes.zygote_tree import ZygoteTree
from sockd.farm.control import ZygoteGone
from sockd.farm.imported import Imported, ImportRequest
from sockd.farm.zygote import Zygote
from sockd.images import environment as environments
from sockd.images.program import OWN, Network
from sockd.kernel import pidfds
from sockd.plain.config import ZygoteConfig
from sockd.plain.errors import SandboxFailed

TRIES = 3
"""How often a Zygote is made anew without the modules that failed in the last."""

_log = logging.getLogger(__name__)


class ImportFailed(SandboxFailed):
    """A distribution cannot be imported in a Zygote."""

    def __init__(self, message: str, module: str) -> None:
        """Args: module: empty if it is not known."""
        super().__init__(message)
        self.module = module


class ZygoteMaker:
    """Of one tree."""

    def __init__(
        self,
        config: ZygoteConfig,
        tree: ZygoteTree,
        profile: ImportProfile,
        provided: Callable[[str], Provided],
        *,
        open_files: int,
    ) -> None:
        """Args: provided: what an installed distribution offers, by key; open_files: the limit that imports find."""
        self._config = config
        self._tree = tree
        self._profile = profile
        self._provided = provided
        self._open_files = open_files

    async def make(self, parent: ZygoteNode, plan: selection.NewNode) -> ZygoteNode:
        """Fork, import, try: a node that may serve. Raises: SandboxFailed, NoCapacity, OSError, TimeoutError."""
        for _ in range(TRIES):
            zygote = await self._tree.spawn(parent)
            try:
                request = self._request(parent, plan.packages, self._profile.modules_for(plan.packages))
                imported = await self._import(zygote, request, parent, plan.added)
                if not imported.failed:
                    return await self._tried(zygote, parent, plan, request, imported)
            except BaseException:
                zygote.close()
                raise
            # What functions could import fails here, and may have left half of itself: another Zygote, without these.
            zygote.close()
            if parent not in self._tree.nodes:
                raise ZygoteGone("the Zygote that it was forked from has ended, perhaps for the same reason")
            self._profile.failed(plan.packages, imported.failed)
        name = min(imported.failed)
        raise SandboxFailed(f"{len(imported.failed)} modules fail in a Zygote, {name}: {imported.failed[name]}")

    async def make_standard_library(self, parent: ZygoteNode, plan: selection.NewNode) -> ZygoteNode:
        """The node of modules of the standard library. Raises: as `make`."""
        request = ImportRequest(
            paths=[], modules=standard_library.MODULES, standard_library=True, open_files=self._open_files
        )
        zygote = await self._tree.spawn(parent)
        try:
            imported = await self._import(zygote, request, parent, ())
            return await self._tried(zygote, parent, plan, request, imported)
        except BaseException:
            zygote.close()
            raise

    async def try_one(self, zygote: Zygote, parent: ZygoteNode, plan: selection.NewNode, key: str) -> None:
        """Have a Zygote import one distribution of a plan, and try a fork of it. Raises: as `make`, if that harms it."""
        modules = self._profile.modules_for(frozenset((key,)) | parent.packages)
        request = self._request(parent, plan.packages, modules)
        await self._import(zygote, request, parent, (key,))
        await canary.try_out(self._tree, zygote, request, deadline_s=self._config.canary_deadline_s)

    async def _import(
        self, zygote: Zygote, request: ImportRequest, parent: ZygoteNode, added: Iterable[str]
    ) -> Imported:
        imported = await self._tree.import_modules(zygote, request, deadline_s=self._config.import_deadline_s)
        self._check(imported, parent, added)
        return imported

    async def _tried(
        self,
        zygote: Zygote,
        parent: ZygoteNode,
        plan: selection.NewNode,
        request: ImportRequest,
        imported: Imported,
    ) -> ZygoteNode:
        """The node of a Zygote that has imported all, after its canary. Raises: as `make`."""
        seen = parent.shared.seen.followed_by(imported.seen)
        distributions = plan.packages - {standard_library.KEY}
        reached: Network = "host" if parent.network == "host" else "none"
        before = parent.shared.packages
        environment = {**environments.BASE, **request.env, OPEN_FILES: str(request.open_files)}
        shared = Preimported(distributions, environment, seen, before, reached)
        modules = frozenset(request.modules)
        node = ZygoteNode(zygote, plan.packages, parent, modules, parent.lineage, shared)
        node.seconds_saved = plan.seconds_saved
        node.order = tuple(dict.fromkeys((*parent.order, *request.modules)))
        node.import_seconds = imported.seconds
        node.rate = DecayingRate(RATE_TAU_S, now_s=time.monotonic(), rate=max(plan.rate, 1 / RATE_TAU_S))
        node.unique_bytes, node.shared_bytes = await asyncio.to_thread(pidfds.memory, zygote.pidfd)
        await self._try_canary(node, request)
        _log.info("%s serves %s: %d modules in %.2f s", node.id, sorted(plan.packages), len(modules), imported.seconds)
        return node

    def _request(self, parent: ZygoteNode, packages: frozenset[str], modules: Sequence[str]) -> ImportRequest:
        """What a Zygote of these packages is told to import. Raises: ZygoteGone."""
        image = self._tree.image_imports(parent.lineage) if parent.lineage.interpreter != OWN else None
        if image is not None:
            return ImportRequest(
                paths=image.roots,
                pth=image.pth,
                env=image.variables,
                modules=modules,
                sys_path=image.path,
                directory=image.directory,
                sitecustomize=image.sitecustomize,
            )
        keys = in_order(packages)
        bins = [f"{SANDBOX_STORE}/{key}/bin" for key in keys if self._provided(key).has_bin]
        return ImportRequest(
            paths=[f"{SANDBOX_STORE}/{key}" for key in keys],
            pth=[f"{SANDBOX_STORE}/{key}" for key in keys if self._provided(key).has_pth],
            env=environments.path_variable(bins),
            modules=modules,
            open_files=self._open_files,
        )

    def _check(self, imported: Imported, parent: ZygoteNode, added: Iterable[str]) -> None:
        """Raises: SandboxFailed when forks would lack threads, or have nothing of one of the added distributions."""
        if imported.threads > 1:
            raise ImportFailed("it starts threads when it is imported, and a fork has only one", imported.threaded)
        if imported.left:
            module = imported.left[0].partition(" leaves ")[0]
            module = module if " " not in module else ""  # it is not known which of them it was
            raise ImportFailed(f"a fork cannot have it of its own: {imported.left[0]}", module)
        known = set(self._profile.modules_for(parent.packages))
        for key in sorted(added):
            own = set(self._profile.modules_for(parent.packages | {key})) - known
            if own and own <= imported.failed.keys():
                module = min(own)
                raise ImportFailed(f"it cannot be imported in a Zygote: {imported.failed[module]}", module)

    async def _try_canary(self, node: ZygoteNode, request: ImportRequest) -> None:
        """One fork must do what functions do, in time; then the node gets its first spare. Raises: as `make`."""
        deadline_s = self._config.canary_deadline_s
        await canary.try_out(self._tree, node.zygote, request, deadline_s=deadline_s)
        if self._config.spares:
            async with asyncio.timeout(deadline_s):
                node.add_spare(await self._tree.fork_spare(node.zygote))
        if not node.zygote.alive:  # the tree was told of its end before it was in the tree
            node.drop_spares()
            raise ZygoteGone("it ended as soon as it was there")
