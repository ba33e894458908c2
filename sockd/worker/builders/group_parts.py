"""The functions of a group of workers: their store in PostgreSQL, their files in the chunk store, and who follows both.

Owns nothing: the stack that it is given closes everything.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from sockd.base.config import Config
from sockd.base.errors import BadConfig
from sockd.base.postgres.database import Database
from sockd.functions.blobs.blob_table import BlobTable, hold
from sockd.functions.blobs.blobs import Blobs
from sockd.functions.blobs.shared_wheels import SharedWheels
from sockd.functions.code.code_store import CodeStore
from sockd.functions.registry.following import Following
from sockd.functions.registry.postgres_store import PostgresStore
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.secrets import Vault
from sockd.functions.serving.function import Caches
from sockd.functions.serving.joining import join
from sockd.functions.serving.shared_files import SharedFiles
from sockd.http import postgres_schema
from sockd.http.management.peer_key import PeerKey
from sockd.images.chunks.image_keys import ImageKeys
from sockd.images.chunks.store import ChunkStore
from sockd.starts.packages.install_cache import InstallCache
from sockd.worker.builders.image_parts import OpenedImages
from sockd.worker.state_dir import REGISTRY, StateDir


@dataclass(frozen=True, slots=True)
class GroupParts:
    """Made by `open`."""

    registry: Registry
    shared: SharedFiles
    following: Following
    database: Database
    """The store's."""
    peer_key: PeerKey
    """By which the workers of the group know each other."""

    @classmethod
    async def open(
        cls,
        config: Config,
        state: StateDir,
        vault: Vault,
        code: CodeStore,
        packages: InstallCache,
        caches: Caches,
        images: OpenedImages,
        stack: AsyncExitStack,
    ) -> GroupParts:
        """Join the group on `stack`. It is followed from `following.start` on.

        Raises: BadConfig, BadDatabase, DatabaseUnavailable; SecretsLocked: there is no images.key_file; ChunkStoreFailed, if
        functions are brought along."""
        check_group(config)
        peer_key = PeerKey(ImageKeys.at(Path(config.images.key_file or "")).peer_key())
        store = await PostgresStore.open(config.postgres, vault, hold)
        stack.push_async_callback(store.aclose)
        await store.database.migrate(postgres_schema.PART, postgres_schema.MIGRATIONS)

        async def open_store() -> tuple[ChunkStore, bytes]:
            parts = await images.importer.store.parts()
            return parts.store, parts.blob_key

        blobs = Blobs(await BlobTable.open(store.database, config.group.name), open_store)
        stack.push_async_callback(blobs.aclose)
        scripts = caches.initscripts.store if caches.initscripts is not None else None
        shared = SharedFiles(blobs, code, state.path / "tmp", scripts, caches.images)
        stack.push_async_callback(shared.aclose)
        packages.installer.share_wheels_with(SharedWheels(blobs))
        own_key = state.path / "secret.key"
        own_vault = Vault.at(own_key) if own_key.exists() else vault
        await join(state.path / REGISTRY, own_vault, store, shared)
        registry = Registry(store, stored := await store.read(), keep_versions=config.code.keep_versions)
        following = Following(registry, config.postgres, max((each.revision for each in stored), default=0))
        blobs.start()
        return cls(registry, shared, following, store.database, peer_key)


def check_group(config: Config) -> None:
    """Check that the workers of a group can share files. Raises: BadConfig."""
    needs = {
        "postgres.dsn": config.postgres.dsn,
        "images.store": config.images.store,
        "images.key_file": config.images.key_file,
    }
    if missing := [key for key, value in needs.items() if not value]:
        raise BadConfig(
            f"group.name = {config.group.name!r}: {' and '.join(missing)} must be set, to the same for all workers of "
            "the group: they share functions in PostgreSQL, and files in the chunk store"
        )
