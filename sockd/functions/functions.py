"""All functions of a worker, as the parts that deploy, serve and show them.

Owns the parts, and the tasks that wait for the last requests of closed versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from sockd.base import uids
from sockd.base.config import Config
from sockd.functions.code.code_store import CodeStore
from sockd.functions.deploys.changes import Changes
from sockd.functions.deploys.deploys import Deploys
from sockd.functions.deploys.package_users import PackageUsers
from sockd.functions.deploys.parts import DeployParts
from sockd.functions.function_views import FunctionViews
from sockd.functions.modules.function_modules import FunctionModules
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.debugging import Debugging
from sockd.functions.serving.function import Caches
from sockd.functions.serving.live_functions import Closed, LiveFunctions
from sockd.functions.serving.shared_files import SharedFiles
from sockd.functions.serving.snapshots import Snapshots
from sockd.functions.serving.version_files import VersionFiles
from sockd.starts.packages.install_cache import InstallCache


class Functions:
    """`load` first, `close` last."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        code: CodeStore,
        packages: InstallCache,
        caches: Caches,
        shared: SharedFiles | None = None,
    ) -> None:
        """Args: shared: None: the worker is in no group."""
        self.registry = registry
        self.failed_inits = caches.failed_inits
        most = config.http.max_payload_bytes
        modules = caches.modules or FunctionModules(None, config.wasm)
        files = VersionFiles(
            *(code, packages, caches.images, caches.image_pythons, modules), max_answer_bytes=most, shared=shared
        )
        wait_s = config.packages.restore_wait_s
        self.live = LiveFunctions(
            registry, files, caches, restore_wait_s=wait_s, live_versions=config.code.live_versions
        )
        self.snapshots = Snapshots(self.live, caches.templates)
        self.views = FunctionViews(registry, self.live, self.snapshots)
        parts = DeployParts.of(config, registry, code, packages, caches, files, self.live, modules, shared)
        self.deploys = Deploys(parts, self.snapshots)
        self.changes = Changes(parts)
        self.switching = parts.switching
        self.garbage = parts.garbage
        confined = uids.confined(config.sandbox.base_uid, config.initscripts.uid)
        self.debugging = Debugging(config.debug, packages, caches.ports, confined)
        self.package_users = PackageUsers(registry, self.live, parts.packages, self.debugging)
        self._endings: set[asyncio.Task[None]] = set()
        """Each task has the name of its function."""
        registry.followers.append(self.reconcile)

    def load(self) -> None:
        """Load the recorded functions, and delete what a killed worker had not recorded. Blocks briefly; starts no process."""
        self.garbage.collect_at_start()
        self.live.load()

    def reconcile(self, old: FunctionAggregate, new: FunctionAggregate) -> None:
        """Make what is live of a function equal to its aggregate. This is the only way from one to the other."""
        closed = self.live.reconcile(old, new)
        if not new.deploys:
            self.switching.note_failed(new.name, None)
        if closed.versions or closed.allowance is not None:
            collecting = self.garbage.collect_closed(*closed)
            ending = asyncio.get_running_loop().create_task(self._end(closed, collecting), name=new.name)
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _end(self, closed: Closed, collecting: Coroutine[None, None, None]) -> None:
        """Wait for the last requests of closed versions, and delete what only these have needed."""
        await collecting
        if closed.allowance is not None:
            self.live.end_unused()

    async def ended(self, name: str) -> None:
        """Wait until the closed versions of a function have ended."""
        await asyncio.shield(asyncio.gather(*(each for each in self._endings if each.get_name() == name)))

    async def remove(self, name: str) -> None:
        """Remove a function after its current requests. Raises: NoSuchFunction."""
        await self.registry.delete(name)
        await self.ended(name)

    def close(self) -> None:
        """Close all functions."""
        for ending in self._endings:
            ending.cancel()
        self.live.close()
