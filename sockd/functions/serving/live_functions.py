"""The functions of a worker that serve requests: the last deploy of each, and the published versions in use.

    get ──► by_name              the last deploy
       ├──► published            a number or an alias
       ├──► restoring            what is recorded and something is missing of on this worker
       └──► opened               what is recorded and has not been called since the start

Owns them and their allowances. Knows nothing of deploys: what they record comes here by `reconcile`.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
from collections.abc import Sequence
from typing import NamedTuple

from sockd.base.errors import FilesMissing, NoSuchFunction, SecretsLocked, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import LATEST
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.allowances import Allowances
from sockd.functions.serving.function import Caches, Function
from sockd.functions.serving.published import Published
from sockd.functions.serving.request_settings import RequestSettings
from sockd.functions.serving.restoring import Restoring
from sockd.functions.serving.version import Version
from sockd.functions.serving.version_files import VersionFiles

HOW_TO_UNLOCK = (
    "the key %s is missing or wrong, so these functions cannot run: %s. Put the right file back and start sockd again; "
    "if it is lost, make a new one with `(umask 77; head -c 32 /dev/urandom > %s)`, start sockd and deploy the functions "
    "with --force"
)

OPENED_AT_START = 200
"""The functions that are live before their first request: those that had Zygotes, and those that were deployed last. Each costs
about a millisecond of the start, and 8 KB."""

_log = logging.getLogger(__name__)


class Closed(NamedTuple):
    """Versions that a change has closed; their last requests may still run."""

    versions: list[Function]
    allowance: Allowance | None = None
    """The function's allowance, if the function was removed."""


class LiveFunctions:
    """`load` first. Every change is one step of the loop."""

    def __init__(
        self, registry: Registry, files: VersionFiles, caches: Caches, *, restore_wait_s: float, live_versions: int
    ) -> None:
        """Args: restore_wait_s: how long a call waits for what its function lacks; live_versions: published versions that stay
        live without a request."""
        self._registry = registry
        self._files = files
        self._caches = caches
        self._live_versions = live_versions
        self.by_name: dict[str, Function] = {}
        """The last deploy of each function that is open: all parts of it are there, and it was called, or opened at the start."""
        self.allowances = Allowances(caches)
        self.request_settings = RequestSettings()
        self.restoring = Restoring(files.restore, lambda record: self.switch(files.load(record)), wait_s=restore_wait_s)
        """Functions of an earlier worker that cannot run yet, because something of them is missing."""
        if caches.images is not None:
            caches.images.added.append(self.restoring.imported)
        self.published = Published(
            registry,
            self.restoring.files,
            caches,
            version_of=files.load,
            allowance_of=self._allowance,
            most=live_versions,
        )

    def load(self) -> None:
        """Make recorded functions live, or note what they lack. Starts no process."""
        records = self._registry.list()
        at_start = self._opened_at_start(records)
        for record in records:
            self._load(record, is_early=record.name in at_start)
        self._reopen_published()
        if locked := [name for name, each in self.restoring.unready.items() if isinstance(each.error, SecretsLocked)]:
            key = self._registry.key_path
            _log.error(HOW_TO_UNLOCK, key, ", ".join(locked), key)

    def _opened_at_start(self, records: Sequence[FunctionRecord]) -> frozenset[str]:
        """Names of functions that are live before their first request: first those that had Zygotes in an earlier worker."""
        latest = heapq.nlargest(OPENED_AT_START, records, key=lambda record: record.published_at)
        names = dict.fromkeys([*self._caches.learner.functions_before(), *(record.name for record in latest)])
        return frozenset(itertools.islice(names, OPENED_AT_START))

    def _reopen_published(self) -> None:
        """Make those published versions live whose snapshots an earlier worker has used lately, the most used last."""
        templates = self._caches.templates
        lately = templates.used_lately() if templates is not None else []
        published = [(name, int(number)) for name, number in lately if number != LATEST]
        for name, number in reversed(published[: self._live_versions]):
            self.published.reopen(name, number)

    async def called(self, request: InvokeRequest) -> Function:
        """The version for a request. Raises: as `get`."""
        return await self.get(request.name, request.qualifier, request.draw())

    async def get(self, name: str, qualifier: str = "", draw: float = 0.0) -> Function:
        """A live version of a function: the last deploy, or a published version.

        Args: qualifier: a number or an alias; draw: in [0, 1), decides between the versions of an alias.
        Raises: NoSuchFunction; as `Restoring.restore`, if something of it was lost."""
        if qualifier:
            number = self.published.resolve(name, qualifier, draw)
            if number is not None:
                return await self.published.get(name, number)
        function = self.opened(name)
        if function is not None:
            return function
        await self.restoring.restore(name)
        return await self.get(name)

    def opened(self, name: str) -> Function | None:
        """The last deploy of a function, which is made live if it is not yet; None: there is none, or it lacks something."""
        if name not in self.by_name and name not in self.restoring.unready and self._registry.of(name).deploys:
            self._serve(self._registry.get(name))
        return self.by_name.get(name)

    def current(self, name: str) -> Version:
        """The last deploy of a function. Raises: NoSuchFunction; what it lacks, if it cannot run."""
        if (function := self.opened(name)) is not None:
            return function.version
        return self._files.load(self._registry.get(name))

    def settings(self, name: str) -> FunctionConfig:
        """The settings of a function, also of one that cannot run. Raises: NoSuchFunction, SecretsLocked."""
        if name in self.by_name:
            return self.by_name[name].version.config
        return self._registry.get(name).settings

    def call_key(self, name: str) -> bytes | None:
        """The key of the deployer's signatures, if any."""
        with contextlib.suppress(NoSuchFunction, SecretsLocked):
            return self.settings(name).call_key
        return None

    def is_app(self, name: str) -> bool:
        """Whether a function is live and known to be a web app."""
        return name in self.by_name and bool(self.by_name[name].version.program.is_app)

    def incarnation(self, name: str, qualifier: str = "") -> str:
        """An id that distinguishes a function from a removed one of the same name; empty: no such function, version or
        alias. (Numbers of versions are never reused.)"""
        deploys = self._registry.of(name).deploys
        if not deploys or (qualifier and not self.published.is_known(name, qualifier)):
            return ""
        return repr(deploys[-1].created_at)

    def all(self) -> list[Version]:
        """The current version of every function that is open, by name."""
        return [self.by_name[name].version for name in sorted(self.by_name)]

    def open_versions(self) -> list[Version]:
        """All versions that are open, published ones among them."""
        return [*self.all(), *(function.version for function in self.published.live())]

    def names(self) -> list[str]:
        """Every function, also those that cannot run, by name."""
        return [record.name for record in self._registry.list()]

    def reconcile(self, old: FunctionAggregate, new: FunctionAggregate) -> Closed:
        """Make what is live of a function equal to what is recorded now: the last deploy, its settings, and which published
        versions there are. A deploy that cannot run yet is listed in `restoring`; the one before serves until it can."""
        if not new.deploys:
            return self._remove(new.name)
        gone = old.publications.keys() - new.publications.keys()
        closed = [function for number in sorted(gone) for function in self.published.drop(new.name, number)]
        if not old.deploys or old.current.version != new.current.version:
            self._serve(new.current)
        elif old.current != new.current and new.name in self.by_name:
            version = self.by_name[new.name].version
            version.record, version.config = new.current, new.current.settings
        return Closed(closed)

    def _load(self, record: FunctionRecord, *, is_early: bool) -> None:
        """Open a function of an earlier worker, or leave it to its first request, unless it holds something before that: memory,
        a snapshot, or a service that always runs. (Its settings are not kept in memory.)"""
        config = FunctionConfig.from_json(record.config)
        keeps_running = config.service is not None and config.service.min
        if is_early or config.reserved_memory_mb or config.snapshot or keeps_running:
            self._serve(record)
            return
        try:
            config.opened()
            self._files.check(record)
        except FilesMissing:  # its first request fetches them
            pass
        except (SockdError, OSError) as error:
            self.restoring.note(record, error)
        self.request_settings.note(record.name, config)

    def _serve(self, record: FunctionRecord) -> None:
        """Make a recorded deploy the one that requests get, or note what it lacks."""
        try:
            self.switch(self._files.load(record))
        except (SockdError, OSError) as error:
            self.restoring.note(record, error)
            self.request_settings.note(record.name, record.readable)

    def switch(self, version: Version) -> Version:
        """Make a recorded version the one that requests get. Raises: NoCapacity."""
        name = version.record.name
        self.restoring.unready.pop(name, None)
        if name in self.by_name:
            self.by_name[name].switch(version)
            self.request_settings.note(name, version.config)
        else:
            self._open(version)
        return version

    def _remove(self, name: str) -> Closed:
        self.request_settings.forget(name)
        self.restoring.unready.pop(name, None)
        closed = self.published.drop(name)
        if (function := self.by_name.pop(name, None)) is not None:
            function.close()
            closed.append(function)
        return Closed(closed, self.allowances.closed(name))

    def end_unused(self) -> None:
        """End the Zygotes that no live version is forked from."""
        self._caches.learner.end_unused([version.view for version in self.open_versions()])

    def close(self) -> None:
        """Close all functions."""
        self.published.close()
        for function in self.by_name.values():
            function.close()
        self.allowances.close()
        self.by_name.clear()

    def _open(self, version: Version) -> None:
        """Make a function live. Raises: NoCapacity."""
        name = version.record.name
        self.by_name[name] = Function(version, self._caches, self.allowances.opened(name, version.config))
        self.request_settings.note(name, version.config)

    def _allowance(self, name: str) -> Allowance:
        """For a published version, which may be live before the last deploy is. Raises: NoSuchFunction, NoCapacity."""
        allowance = self.allowances.get(name)
        if allowance is None:
            allowance = self.allowances.opened(name, self._registry.get(name).settings)
        return allowance
