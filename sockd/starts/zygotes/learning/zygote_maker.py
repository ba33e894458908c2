"""Makes one Zygote: fork, import, check, and try it, before it may serve.

Owns a Zygote until it is a node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sockd.base.config import FunctionDefaults, ZygoteConfig
from sockd.base.errors import SandboxFailed
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.imported import Imported, ImportRequest
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots import environment as environments
from sockd.isolation.roots.program import OWN
from sockd.linux.processes import pidfds
from sockd.starts.packages.distribution import SANDBOX_STORE, in_order, name_of
from sockd.starts.packages.provided_names import Provided
from sockd.starts.zygotes import selection
from sockd.starts.zygotes.learning import canary
from sockd.starts.zygotes.rate import RATE_TAU_S, DecayingRate
from sockd.starts.zygotes.top_levels.soundness import Preimported, visible_limits
from sockd.starts.zygotes.top_levels.top_level import TopLevel
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree

_log = logging.getLogger(__name__)


class ImportFailed(SandboxFailed):
    """A distribution cannot be imported in a Zygote."""

    def __init__(self, message: str, module: str) -> None:
        """Args: module: empty if it is not known."""
        super().__init__(message)
        self.module = module


@dataclass(frozen=True, slots=True)
class Plan:
    """A Zygote to be made, and the top level whose order of imports it follows."""

    node: selection.NewNode
    program: str
    """The version that it is made for (`ImportView.program`), and its function's name."""
    function: str
    top: TopLevel
    order: tuple[str, ...] = ()
    """The order of imports, if it is not the top level's."""

    @property
    def modules(self) -> Sequence[str]:
        """What it imports, in order."""
        return self.order or self.top.in_order(self.imports)

    @property
    def imports(self) -> frozenset[str]:
        return self.node.imports

    @property
    def keys(self) -> frozenset[str]:
        """The distributions that are imported from."""
        return frozenset().union(*(self.top.keys_of_id(import_) for import_ in self.node.imports))

    @property
    def words(self) -> str:
        """Names of its packages, for people."""
        return ", ".join(sorted(map(name_of, self.keys))) or "the standard library"


class ZygoteMaker:
    """Makes the Zygotes of one tree."""

    def __init__(
        self,
        config: ZygoteConfig,
        tree: ZygoteTree,
        provided: Callable[[str], Provided],
        path_of: Callable[[frozenset[str], TopLevel], frozenset[str]],
        *,
        defaults: FunctionDefaults,
    ) -> None:
        """Args: provided: what an installed distribution offers, by key; path_of: the distributions that a Zygote of these
        imports has on sys.path; defaults: the limits that imports find."""
        self._config = config
        self._tree = tree
        self._provided = provided
        self._path_of = path_of
        self._defaults = defaults

    async def make(self, parent: ZygoteNode, plan: Plan) -> ZygoteNode:
        """Fork, import, try: a node that may serve. Raises: SandboxFailed, NoCapacity, OSError, TimeoutError."""
        zygote = await self._tree.lineages.spawn(parent)
        try:
            request = self._request(parent, plan, plan.modules)
            imported = await self._import(zygote, request)
            return await self._tried(zygote, parent, plan, request, imported)
        except BaseException:
            zygote.close()
            raise

    async def try_one(self, zygote: Zygote, parent: ZygoteNode, plan: Plan, import_: str) -> None:
        """Have a Zygote do one import of a plan, and try a fork of it. Raises: as `make`, if that harms it."""
        request = self._request(parent, plan, plan.top.in_order(frozenset((import_,))))
        await self._import(zygote, request)
        await canary.try_out(self._tree, zygote, request, deadline_s=self._config.canary_deadline_s)

    async def _import(self, zygote: Zygote, request: ImportRequest) -> Imported:
        """Raises: SandboxFailed, when forks would not be as after imports of their own."""
        imported = await self._tree.children.import_modules(zygote, request, deadline_s=self._config.import_deadline_s)
        if imported.failed:
            module = min(imported.failed)
            raise ImportFailed(f"it cannot be imported in a Zygote: {imported.failed[module]}", module)
        if imported.threads > 1:
            raise ImportFailed("it starts threads when it is imported, and a fork has only one", imported.threaded)
        if imported.left:
            module = imported.left[0].partition(" leaves ")[0]
            module = module if " " not in module else ""  # it is not known which of them it was
            raise ImportFailed(f"a fork cannot have it of its own: {imported.left[0]}", module)
        return imported

    async def _tried(
        self, zygote: Zygote, parent: ZygoteNode, plan: Plan, request: ImportRequest, imported: Imported
    ) -> ZygoteNode:
        """The node of a Zygote that has imported all, after its canary. Raises: as `make`."""
        above, defaults = parent.shared, self._defaults
        limits = visible_limits(open_files=request.open_files, tmp_mb=defaults.tmp_mb, tmp_inodes=defaults.tmp_inodes)
        shared = Preimported(
            self._path_of(plan.imports, plan.top),
            {**environments.BASE, **request.env, **limits},
            above.seen.followed_by(imported.seen),
            "host" if parent.network == "host" else "none",
            above.loaded.union(*(modules for _, modules in imported.loaded)),
            tuple(dict.fromkeys((*above.order, *request.modules))),
            (*above.groups, *imported.loaded),
        )
        node = ZygoteNode(zygote, plan.keys, parent, plan.imports, parent.lineage, shared)
        node.program, node.function = plan.program, plan.function
        node.seconds_saved = plan.node.seconds_saved
        node.rate = DecayingRate(RATE_TAU_S, now_s=time.monotonic(), rate=max(plan.node.rate, 1 / RATE_TAU_S))
        node.unique_bytes, node.shared_bytes = await asyncio.to_thread(pidfds.memory, zygote.pidfd)
        await self._try_canary(node, request)
        _log.info("%s serves %s: %d modules in %.2f s", node.id, plan.words, len(shared.loaded), imported.seconds)
        return node

    def _request(self, parent: ZygoteNode, plan: Plan, modules: Sequence[str]) -> ImportRequest:
        """Return what a Zygote is asked to import. Raises: ZygoteGone."""
        image = self._tree.children.image_imports(parent.lineage) if parent.lineage.interpreter != OWN else None
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
        keys = in_order(self._path_of(plan.imports, plan.top))
        bins = [f"{SANDBOX_STORE}/{key}/bin" for key in keys if self._provided(key).has_bin]
        return ImportRequest(
            paths=[f"{SANDBOX_STORE}/{key}" for key in keys],
            pth=[f"{SANDBOX_STORE}/{key}" for key in keys if self._provided(key).has_pth],
            env=environments.path_variable(bins),
            modules=modules,
            open_files=self._defaults.open_files,
        )

    async def _try_canary(self, node: ZygoteNode, request: ImportRequest) -> None:
        """One fork must do what functions do, in time; then the node gets its first spare. Raises: as `make`."""
        deadline_s = self._config.canary_deadline_s
        await canary.try_out(self._tree, node.zygote, request, deadline_s=deadline_s)
        if self._config.spares:
            async with asyncio.timeout(deadline_s):
                node.add_spare(await self._tree.children.fork_spare(node.zygote))
        if not node.zygote.alive:  # the tree learned of its end before it was in the tree
            node.drop_spares()
            raise ZygoteGone("it ended as soon as it was there")
