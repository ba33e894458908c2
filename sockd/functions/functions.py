"""All functions of a worker, as the parts that deploy, serve and show them.

Owns the parts and the registry.
"""

from __future__ import annotations

from sockd.base import uids
from sockd.base.config import Config
from sockd.functions.code.code_store import CodeStore
from sockd.functions.deploys.changes import Changes
from sockd.functions.deploys.deploys import Deploys
from sockd.functions.deploys.package_users import PackageUsers
from sockd.functions.deploys.parts import DeployParts
from sockd.functions.function_views import FunctionViews
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.debugging import Debugging
from sockd.functions.serving.function import Caches
from sockd.functions.serving.live_functions import LiveFunctions
from sockd.functions.serving.snapshots import Snapshots
from sockd.functions.serving.version_files import VersionFiles
from sockd.starts.packages.install_cache import InstallCache


class Functions:
    """`load` first, `close` last."""

    def __init__(
        self, config: Config, registry: Registry, code: CodeStore, packages: InstallCache, caches: Caches
    ) -> None:
        self.registry = registry
        self.failed_inits = caches.failed_inits
        most = config.http.max_payload_bytes
        files = VersionFiles(code, packages, caches.images, caches.image_pythons, max_answer_bytes=most)
        wait_s = config.packages.restore_wait_s
        self.live = LiveFunctions(
            registry, files, caches, restore_wait_s=wait_s, live_versions=config.code.live_versions
        )
        self.snapshots = Snapshots(self.live, caches.templates)
        self.views = FunctionViews(registry, self.live, self.snapshots)
        parts = DeployParts.of(config, registry, code, packages, caches, files, self.live)
        self.deploys = Deploys(parts, self.snapshots)
        self.changes = Changes(parts)
        self.switching = parts.switching
        self.garbage = parts.garbage
        confined = uids.confined(config.sandbox.base_uid, config.initscripts.uid)
        self.debugging = Debugging(config.debug, packages, caches.ports, confined)
        self.package_users = PackageUsers(registry, self.live, parts.packages, self.debugging)

    def load(self) -> None:
        """Load the recorded functions, and delete what a killed worker had not recorded. Blocks briefly; starts no process."""
        self.garbage.collect_at_start()
        self.live.load()

    async def remove(self, name: str) -> None:
        """Remove a function after its current requests. Raises: NoSuchFunction."""
        await self.registry.delete(name)
        self.switching.note_failed(name, None)
        await self.garbage.collect_closed(*self.live.remove(name))
        self.live.end_unused()

    def close(self) -> None:
        """Close all functions and the registry."""
        self.live.close()
        self.registry.close()
