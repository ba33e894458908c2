"""The registry: the current aggregate of each function, in memory, and the changes of it through its store.

Reads, those of requests among them, read memory only. A change computes the next aggregate, stores it by compare-and-set, makes
it the one that is read, and has the followers make what is live equal to it, in the same loop step. Changes of one function
follow each other. Settings and packages are JSON that this file does not look into. Owns the store.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from sockd.base.errors import NoSuchFunction
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_store import Conflict, FunctionStore
from sockd.functions.registry.function_url import FunctionUrl, NoSuchUrl
from sockd.functions.registry.provisions import Provision
from sockd.functions.registry.publications import Publication
from sockd.functions.registry.secrets import Vault
from sockd.functions.registry.sqlite_store import SqliteStore

Change = Callable[[FunctionAggregate], FunctionAggregate]
Follow = Callable[[FunctionAggregate, FunctionAggregate], None]
"""Makes what is live of a function equal to its new aggregate, at once. It gets the old one, too, and raises nothing."""


class Registry:
    """All functions. For one event loop."""

    def __init__(
        self, store: FunctionStore, stored: Iterable[FunctionAggregate] = (), *, keep_versions: int = 5
    ) -> None:
        """Args:
        stored: what is in the store.
        keep_versions: deploys of each function that are remembered, the current one included; at least 1. What is
            published is remembered besides."""
        self._store = store
        self._keep_versions = keep_versions
        self._functions: dict[str, FunctionAggregate] = {}
        self._urls: dict[str, FunctionUrl] = {}
        """By their ids."""
        self._changing: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """By the names of functions; held while one is changed."""
        self.followers: list[Follow] = []
        """Functions that are called after each change; one that depends on another comes after it, and is called before it."""
        for function in stored:
            self._show(function)

    @classmethod
    async def open(cls, path: Path, vault: Vault | None = None, *, keep_versions: int = 5) -> Registry:
        """The registry in a SQLite file. Args: vault: None: one with its key next to the file. Raises: as SqliteStore.open."""
        store = SqliteStore.open(path, vault or Vault.at(path.parent / "secret.key"))
        return await cls.load(store, keep_versions=keep_versions)

    @classmethod
    async def load(cls, store: FunctionStore, *, keep_versions: int = 5) -> Registry:
        """The registry of what is in a store, which it owns from now on."""
        try:
            return cls(store, await store.read(), keep_versions=keep_versions)
        except BaseException:
            await store.aclose()
            raise

    @property
    def key_path(self) -> Path:
        """The file of the key that environments are sealed with."""
        return self._store.key_path

    async def aclose(self) -> None:
        await self._store.aclose()

    # -- what there is

    def of(self, name: str) -> FunctionAggregate:
        """A function; an empty aggregate if there is none."""
        return self._functions.get(name) or FunctionAggregate(name)

    def get(self, name: str) -> FunctionRecord:
        """The current deploy of a function. Raises: NoSuchFunction."""
        return self.of(name).current

    def list(self) -> list[FunctionRecord]:
        """The current deploy of every function, by name."""
        return [function.current for _, function in sorted(self._functions.items())]

    def versions(self, name: str) -> Sequence[FunctionRecord]:
        """The deploys of a function that are remembered, newest first. Raises: NoSuchFunction."""
        self.get(name)
        return self.of(name).deploys[::-1]

    def digests(self) -> set[str]:
        """The code that any remembered deploy needs; the rest may go."""
        return {record.digest for record in self._deploys()}

    def initscripts(self) -> set[str]:
        """The WebAssembly modules that any remembered deploy needs."""
        return {record.initscript for record in self._deploys() if record.initscript}

    def images(self) -> set[str]:
        """The images that any remembered deploy needs, by digest."""
        return {record.image for record in self._deploys() if record.image}

    def deploys_in_images(self) -> Iterator[FunctionRecord]:
        """Iterate over the remembered deploys that run in an image."""
        return (record for record in self._deploys() if record.image)

    def publications(self) -> Iterator[Publication]:
        """All published versions, those of each function oldest first."""
        return (each for function in self._functions.values() for each in function.publications.values())

    def provisions(self) -> Iterator[Provision]:
        """Iterate over the provisions of all functions."""
        return (each for function in self._functions.values() for each in function.provisions.values())

    def url(self, id_: str) -> FunctionUrl:
        """The function URL with this id. Raises: NoSuchUrl."""
        if id_ not in self._urls:
            raise NoSuchUrl("no function has this URL")
        return self._urls[id_]

    def _deploys(self) -> Iterator[FunctionRecord]:
        return (record for function in self._functions.values() for record in function.deploys)

    # -- changes

    async def put(
        self,
        name: str,
        *,
        digest: str,
        code_bytes: int,
        handler: str,
        config: str,
        closure: str,
        initscript: str = "",
        image: str = "",
    ) -> FunctionRecord:
        """Make this the current deploy of a function; forget the oldest ones. Deploying what is current changes nothing.

        Raises: Conflict; StorageFull; SecretsLocked when there is an environment and no key."""
        now = time.time()
        new = FunctionRecord(name, 1, digest, code_bytes, handler, config, closure, initscript, now, now, image)

        def deploy(function: FunctionAggregate) -> FunctionAggregate:
            return function.with_deploy(new, self._keep_versions)

        return (await self.change(name, deploy, is_new=True)).current

    async def amend(self, record: FunctionRecord, config: str) -> FunctionRecord:
        """Other settings for a recorded deploy. Raises: as `put`; NoSuchFunction."""
        changed = await self.change(record.name, lambda function: function.with_config(record.version, config))
        return changed.deploy(record.version)

    async def publish(self, name: str, version: int, description: str) -> Publication:
        """Give a deploy the next number. Raises: NoSuchFunction, Conflict, StorageFull."""
        changed = await self.change(name, lambda function: function.with_publication(version, description, time.time()))
        return changed.publications[changed.last_number]

    async def unpublish(self, name: str, number: int) -> None:
        """Forget a published version, and its deploy if that is old.

        Raises: NoSuchFunction, VersionInUse, Conflict, StorageFull."""
        await self.change(name, lambda function: function.without_publication(number, self._keep_versions))

    async def delete(self, name: str) -> None:
        """Forget a function and everything of it. Raises: NoSuchFunction, Conflict, StorageFull."""
        await self.change(name, FunctionAggregate.removed)

    async def change(self, name: str, change: Change, *, is_new: bool = False) -> FunctionAggregate:
        """Change a function, after those who change it now; as it is then.

        Args:
            change: from one aggregate to the next; what it raises is raised.
            is_new: whether the function may be one that is not there.
        Raises: NoSuchFunction; Conflict; StorageFull. Nothing has changed then."""
        async with self._changing.setdefault(name, asyncio.Lock()):
            old = self.of(name)
            if not old.deploys:
                old = await self._store.get(name)  # a removed one has its last number there
                if old.deploys:  # another writer's, which is not followed yet
                    self._show(old)
                elif not is_new:
                    raise NoSuchFunction(f"no function {name!r}")
            new = change(old)
            if new == old:
                return old
            try:
                if new.deploys or new.last_number:
                    new = await self._store.put(new, expected=old)
                else:
                    await self._store.remove(old)
            except Conflict:
                self._show(await self._store.get(name))
                raise
            self._show(new)
            return new

    async def refresh(self, name: str) -> None:
        """Read a function again that another writer may have changed, after those who change it now.

        Raises: DatabaseUnavailable."""
        async with self._changing.setdefault(name, asyncio.Lock()):
            stored, shown = await self._store.get(name), self.of(name)
            if stored.revision != shown.revision and (stored.deploys or shown.deploys):
                self._show(stored)

    def _show(self, function: FunctionAggregate) -> None:
        """From now on readers find this one."""
        old = self.of(function.name)
        for url in old.urls.values():
            del self._urls[url.id]
        self._urls |= {url.id: url for url in function.urls.values()}
        if function.deploys:
            self._functions[function.name] = function
        else:
            self._functions.pop(function.name, None)
        for follow in reversed(self.followers):
            follow(old, function)
