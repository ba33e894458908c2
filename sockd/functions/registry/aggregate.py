"""Everything that a function is, as one immutable value: its deploys, published versions, aliases, provisions,
URLs and policies.

Each `with_...` and `without_...` is a pure function from one value to the next. Owns nothing: a `FunctionStore` keeps the
values, `Registry` has the current ones in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sockd.base.errors import NoSuchFunction, NoSuchVersion
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_url import FunctionUrl
from sockd.functions.registry.policy import Policy
from sockd.functions.registry.provisions import Provision
from sockd.functions.registry.publications import Publication, VersionInUse

K = TypeVar("K", int, str)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class FunctionAggregate:
    """One function; without deploys, there is none of this name. The mappings are sorted by their keys."""

    name: str
    revision: int = 0
    """The revision of the stored value: each stored change has another one. 0: nothing is stored."""
    last_number: int = 0
    """The number that was published last. It outlives the function, so that no number is used twice."""
    deploys: tuple[FunctionRecord, ...] = ()
    """The deploys that are remembered, oldest first; the last one is the current one."""
    publications: Mapping[int, Publication] = field(default_factory=dict)
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    provisions: Mapping[str, Provision] = field(default_factory=dict)
    """By qualifier: a published number or an alias."""
    urls: Mapping[str, FunctionUrl] = field(default_factory=dict)
    """By qualifier: an alias, or empty for the last deploy."""
    policies: Mapping[str, Policy] = field(default_factory=dict)
    """By qualifier: a published number, an alias, or empty for the last deploy."""

    @property
    def current(self) -> FunctionRecord:
        """The last deploy. Raises: NoSuchFunction."""
        if not self.deploys:
            raise NoSuchFunction(f"no function {self.name!r}")
        return self.deploys[-1]

    @property
    def has_private(self) -> bool:
        """Whether a remembered deploy has a private network, so that the function's rules are in use or can be again."""
        return any(record.readable.network == "private" for record in self.deploys)

    def deploy(self, version: int) -> FunctionRecord:
        """A deploy that is remembered. Raises: NoSuchFunction."""
        for record in self.deploys:
            if record.version == version:
                return record
        raise NoSuchFunction(f"no deploy {version} of {self.name!r} is remembered")

    def published(self, number: int) -> tuple[Publication, FunctionRecord]:
        """A published version, and the deploy that it is. Raises: NoSuchVersion."""
        publication = self.publications.get(number)
        if publication is None:
            raise NoSuchVersion(self.name, str(number))
        return publication, self.deploy(publication.version)

    def alias(self, alias: str) -> Alias:
        """Raises: NoSuchVersion."""
        if alias not in self.aliases:
            raise NoSuchVersion(self.name, alias)
        return self.aliases[alias]

    # -- changes

    @property
    def next_version(self) -> int:
        """The number that a changed deploy would get."""
        return self.deploys[-1].version + 1 if self.deploys else 1

    def with_deploy(self, record: FunctionRecord, keep: int) -> FunctionAggregate:
        """Another current deploy, unless it equals the current one.

        Args:
            record: its `version` and `created_at` are replaced by those that follow from the deploys before.
            keep: deploys that are remembered, the current one included; what is published is remembered besides."""
        version, created_at = 1, record.created_at
        if self.deploys:
            old = self.deploys[-1]
            version, created_at = old.version + 1, old.created_at
            if replace(record, version=old.version, published_at=old.published_at, created_at=created_at) == old:
                return self
        new = replace(record, version=version, created_at=created_at)
        return replace(self, deploys=(*self.deploys, new))._without_old_deploys(keep)

    def with_config(self, version: int, config: str) -> FunctionAggregate:
        """Other settings for one deploy. Args: config: JSON of a FunctionConfig."""
        deploys = (replace(each, config=config) if each.version == version else each for each in self.deploys)
        return replace(self, deploys=tuple(deploys))

    def with_publication(self, version: int, description: str, now: float) -> FunctionAggregate:
        """The next number for a deploy. Args: now: Unix time. Raises: NoSuchFunction, if the deploy is not remembered."""
        self.deploy(version)
        number = self.last_number + 1
        publication = Publication(self.name, number, version, description, now)
        return replace(self, last_number=number, publications=_with(self.publications, number, publication))

    def without_publication(self, number: int, keep: int) -> FunctionAggregate:
        """What was provisioned for the published version goes with it, its policy, and its deploy if that is old.

        Raises: VersionInUse."""
        using = [each.alias for each in self.aliases.values() if str(number) in (each.version, each.other)]
        if using:
            raise VersionInUse(
                f"Function version {number} is used by alias {', '.join(using)}; change or delete that first"
            )
        publications = _without(self.publications, number)
        parts: tuple[Mapping[str, Any], ...] = (self.provisions, self.policies)
        provisions, policies = (_without(part, str(number)) for part in parts)
        changed = replace(self, publications=publications, provisions=provisions, policies=policies)
        return changed._without_old_deploys(keep)

    def with_alias(self, alias: Alias) -> FunctionAggregate:
        """Add it, or change it."""
        return replace(self, aliases=_with(self.aliases, alias.alias, alias))

    def without_alias(self, alias: str) -> FunctionAggregate:
        """What was provisioned for the alias goes with it, its URL and its policy."""
        parts: tuple[Mapping[str, Any], ...] = (self.aliases, self.provisions, self.urls, self.policies)
        aliases, provisions, urls, policies = (_without(part, alias) for part in parts)
        return replace(self, aliases=aliases, provisions=provisions, urls=urls, policies=policies)

    def with_provision(self, provision: Provision) -> FunctionAggregate:
        """Add it, or change it."""
        return replace(self, provisions=_with(self.provisions, provision.qualifier, provision))

    def without_provision(self, qualifier: str) -> FunctionAggregate:
        return replace(self, provisions=_without(self.provisions, qualifier))

    def with_url(self, url: FunctionUrl) -> FunctionAggregate:
        """Add it, or change it."""
        return replace(self, urls=_with(self.urls, url.qualifier, url))

    def without_url(self, qualifier: str) -> FunctionAggregate:
        return replace(self, urls=_without(self.urls, qualifier))

    def with_policy(self, qualifier: str, policy: Policy) -> FunctionAggregate:
        """Add it, or change it."""
        return replace(self, policies=_with(self.policies, qualifier, policy))

    def removed(self) -> FunctionAggregate:
        """What is left of a removed function."""
        return FunctionAggregate(self.name, self.revision, self.last_number)

    def _without_old_deploys(self, keep: int) -> FunctionAggregate:
        published = {each.version for each in self.publications.values()}
        oldest = self.current.version - keep
        deploys = tuple(each for each in self.deploys if each.version > oldest or each.version in published)
        return replace(self, deploys=deploys)


def _with(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    return dict(sorted({**mapping, key: value}.items()))


def _without(mapping: Mapping[K, V], key: K) -> Mapping[K, V]:
    return {each: value for each, value in mapping.items() if each != key}
