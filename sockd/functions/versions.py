"""Published versions and aliases of functions, and rollback.

Owns nothing: the registry has the records, `Functions` what is live, `provisioning` what is kept initialized. The registry
makes changes of one function one after the other.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from sockd.base.config import CodeConfig
from sockd.base.errors import BadRequest, NoSuchVersion, SockdError
from sockd.functions.deploys.canaries import Canaries
from sockd.functions.functions import Functions
from sockd.functions.provisioning import Provisioning
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import LATEST, NAME, Alias, number_of
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_store import Conflict
from sockd.functions.registry.publications import Publication
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.function import is_learned


class Described(NamedTuple):
    """One version of a function."""

    record: FunctionRecord
    publication: Publication | None
    """None: $LATEST."""


class Versions:
    """The versions of all functions."""

    def __init__(
        self, registry: Registry, functions: Functions, provisioning: Provisioning, config: CodeConfig
    ) -> None:
        self._registry = registry
        self._functions = functions
        self._most = config.max_published
        self.provisioning = provisioning
        self.canaries = Canaries(self)

    # -- published versions

    async def publish(self, name: str, description: str | None = None) -> Described:
        """Publish the last deploy under a number, unless it equals the last published version.

        Args: description: None: that of the function.
        Raises: NoSuchFunction, BadRequest, StorageFull."""
        record = self._registry.get(name)
        config = record.settings
        function = self._registry.of(name)
        if function.publications:
            last, deploy = function.published(max(function.publications))
            if same(record, deploy):
                return Described(deploy, last)
        if len(function.publications) >= self._most:
            raise BadRequest(f"{name} has {self._most} published versions, code.max_published: delete some first")
        if description is None:
            description = config.aws.description if config.aws else ""
        published = await self._registry.publish(name, record.version, description)
        if config.snapshot:
            self._functions.snapshots.expect(name, published.number)
        await self._learn(name, published.number)
        return Described(record, published)

    async def _learn(self, name: str, number: int) -> None:
        """Record a published version's top level if that of the last deploy is: its number is in its environment."""
        latest = self._functions.live.by_name.get(name)
        if latest is not None and is_learned(latest):
            with contextlib.suppress(SockdError, OSError):  # its first request tells
                (await self._functions.live.published.get(name, number)).learn()

    def get(self, name: str, qualifier: str = "") -> Described:
        """The version that a qualifier means; of an alias, the one that gets most of its requests.

        Raises: NoSuchFunction, NoSuchVersion."""
        latest = self._registry.get(name)
        number = self._functions.live.published.resolve(name, qualifier or LATEST, draw=1.0)
        if number is None:
            return Described(latest, None)
        publication, record = self._registry.of(name).published(number)
        return Described(record, publication)

    def list(self, name: str) -> Sequence[Publication | None]:
        """None for $LATEST, then what was published, oldest first: for `described`. Raises: NoSuchFunction."""
        self._registry.get(name)
        return [None, *self._registry.of(name).publications.values()]

    def everything(self) -> Sequence[tuple[str, Publication | None]]:
        """What `list` gives of every function, by name."""
        by_name: dict[str, list[Publication | None]] = {name: [None] for name in self._functions.live.names()}
        for each in self._registry.publications():
            by_name.setdefault(each.name, [None]).append(each)
        return [(name, each) for name in sorted(by_name) for each in by_name[name]]

    def described(self, name: str, publication: Publication | None) -> Described:
        """One of those that were listed. Raises: NoSuchFunction."""
        if publication is None:
            return Described(self._registry.get(name), None)
        return Described(self._registry.of(name).deploy(publication.version), publication)

    def deploys(self, name: str) -> Sequence[FunctionRecord]:
        """The recorded deploys of a function, newest first. Raises: NoSuchFunction."""
        return self._registry.versions(name)

    async def delete(self, name: str, number: int) -> None:
        """Delete a published version after its current requests; no error if there is none.

        Raises: NoSuchFunction, VersionInUse, StorageFull."""
        await self._registry.unpublish(name, number)
        await self._functions.ended(name)

    # -- aliases

    async def put_alias(self, alias: Alias, *, old: Alias | None = None) -> Alias:
        """Add or change one; as it is now, with its new revision.

        Args: old: what it has to be still; None: it may be anything.
        Raises: NoSuchFunction, NoSuchVersion, BadRequest, Conflict, StorageFull."""
        new = replace(alias, revision=str(uuid.uuid4()))

        def put(function: FunctionAggregate) -> FunctionAggregate:
            if old is not None and function.aliases.get(old.alias) != old:
                raise Conflict(old.name)
            self._check_alias(new)
            return function.with_alias(new)

        await self._registry.change(new.name, put)
        return new

    def alias(self, name: str, alias: str) -> Alias:
        """Raises: NoSuchFunction, NoSuchVersion."""
        self._registry.get(name)
        return self._registry.of(name).alias(alias)

    def guarded(self, name: str, qualifier: str) -> Alias | None:
        """Return the alias of this name, if its second version is guarded; None: it is not, or there is no such alias."""
        alias = self._registry.of(name).aliases.get(qualifier)
        return alias if alias is not None and alias.guard is not None else None

    def aliases(self, name: str) -> Sequence[Alias]:
        """By their names. Raises: NoSuchFunction."""
        self._registry.get(name)
        return list(self._registry.of(name).aliases.values())

    async def delete_alias(self, name: str, alias: str) -> None:
        """Nothing happens if there is none. Raises: NoSuchFunction, StorageFull."""
        await self._registry.change(name, lambda function: function.without_alias(alias))

    def _check_alias(self, alias: Alias) -> None:
        if not NAME.fullmatch(alias.alias):
            raise BadRequest(f"{alias.alias[:80]!r} cannot be an alias: 1 to 128 of a-z A-Z 0-9 - _, and no number")
        if alias.version != LATEST:
            self._check_number(alias.name, alias.version)
        if alias.other:
            if alias.other == alias.version:
                raise BadRequest(
                    f"Invalid function version {alias.other}. Function version {alias.other} is already included in "
                    "routing configuration."
                )
            if LATEST in (alias.version, alias.other):
                raise BadRequest(f"{LATEST} is not supported for an alias pointing to more than 1 version")
            self._check_number(alias.name, alias.other)
        if alias.guard is not None and not (alias.other and alias.weight):
            raise BadRequest("errors are watched of a second version that has a share of the requests: say its canary")
        if not 0 <= alias.weight < 1:
            raise BadRequest(f"the weight {alias.weight} of an alias must be at least 0 and less than 1")
        self.provisioning.check_alias(alias)
        aliases = self._registry.of(alias.name).aliases
        if len(aliases) >= self._most and alias.alias not in aliases:
            raise BadRequest(f"{alias.name} has {self._most} aliases, code.max_published: delete some first")

    def _check_number(self, name: str, version: str) -> None:
        number = number_of(version)
        if number is None:
            raise NoSuchVersion(name, version)
        self._registry.of(name).published(number)

    # -- going back

    async def rollback(self, name: str, number: int | None = None) -> FunctionRecord:
        """Deploy the code before the last deploy again, or a published version.

        Raises: NoSuchFunction, NoSuchVersion, BadRequest, InstallFailed, NoCapacity, StorageFull."""
        old = self._registry.of(name).published(number)[1] if number is not None else self.deploy_before(name)
        if old is None:
            raise BadRequest(f"no earlier deploy of {name} is remembered, so there is nothing to roll back to")
        return (await self._functions.changes.restore(old)).record

    def deploy_before(self, name: str) -> FunctionRecord | None:
        """The last deploy that differs from the present one; None: none is remembered. Raises: NoSuchFunction."""
        current, *others = self._registry.versions(name)
        return next((record for record in others if not same(record, current)), None)


def same(one: FunctionRecord, other: FunctionRecord) -> bool:
    """Whether two deploys are the same version, ignoring limits that all versions share."""
    config = one.settings
    content = (one.digest, one.handler, one.closure, one.initscript, one.image)
    if content != (other.digest, other.handler, other.closure, other.initscript, other.image):
        return False
    theirs = other.settings.with_shared(config)
    return msgspec.structs.replace(config.with_shared(config), by_command=[]) == msgspec.structs.replace(
        theirs, by_command=[]
    )
