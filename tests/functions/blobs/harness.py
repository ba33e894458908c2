"""A database and a chunk store with blobs in them."""

from __future__ import annotations

from pathlib import Path

from sockd.base.config import PostgresConfig
from sockd.functions.blobs.blob_table import BlobTable, hold
from sockd.functions.blobs.blobs import Blobs
from sockd.functions.registry.postgres_store import PostgresStore
from sockd.functions.registry.secrets import Vault
from sockd.images.chunks.store import ChunkStore

KEY = bytes(32)


class Harness:
    """A database and a chunk store, as several workers share them."""

    def __init__(self, path: Path, dsn: str, chunks: ChunkStore) -> None:
        self.path = path
        self.config = PostgresConfig(dsn=dsn, timeout_s=60.0)
        self.chunks = chunks
        self.functions: PostgresStore
        self.table: BlobTable
        self.blobs: Blobs

    async def open(self) -> None:
        self.functions = await PostgresStore.open(self.config, Vault.at(self.path / "secret.key"), hold)
        self.table = await BlobTable.open(self.functions.database, "g")
        self.blobs = Blobs(self.table, self.store)

    async def store(self) -> tuple[ChunkStore, bytes]:
        return self.chunks, KEY

    @property
    def objects(self) -> list[str]:
        return list(self.chunks.list_objects("blobs/"))

    async def get(self, name: str) -> bytes | None:
        path = self.path / "got"
        try:
            return path.read_bytes() if await self.blobs.get(name, path) else None
        finally:
            path.unlink(missing_ok=True)
