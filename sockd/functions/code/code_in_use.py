"""Code that is in use: what of the code store is not garbage, though no record says so yet, or any more.

Owns the list of it: the code of deploys under way, and of closed versions that still run. A collection never overlaps with a
publication whose digest is not recorded yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from sockd.base.blocking import in_thread
from sockd.functions.code.code_store import CodeStore, CodeVersion


class CodeInUse:
    """Over one code store. For one event loop; the store's work is done in threads."""

    def __init__(self, store: CodeStore, recorded: Callable[[], set[str]]) -> None:
        """Args: recorded: the digests that any remembered version needs."""
        self._store = store
        self._recorded = recorded
        self._publishing = asyncio.Lock()
        self._held: list[str] = []

    @contextlib.asynccontextmanager
    async def published(self, zip_path: Path) -> AsyncIterator[CodeVersion]:
        """The archive as published code, which is not garbage until the block ends. Raises: BadArchive, StorageFull."""
        with contextlib.ExitStack() as stack:
            async with self._publishing:
                code = await in_thread(self._store.publish, zip_path)
                stack.enter_context(self.holding(code.digest))
            yield code

    @contextlib.contextmanager
    def holding(self, digest: str) -> Iterator[None]:
        """Code that is not garbage until the block ends."""
        self._held.append(digest)
        try:
            yield
        finally:
            self._held.remove(digest)

    async def collect(self) -> None:
        """Delete the code that is not in use."""
        async with self._publishing:
            found = await in_thread(self._store.digests)
            # In one step of the loop: another worker's deploy that is followed finds its code, or that it is not here.
            unneeded = [self._store.withdraw(digest) for digest in found - self._recorded() - set(self._held)]
            for directory in unneeded:
                await in_thread(shutil.rmtree, directory, ignore_errors=True)
