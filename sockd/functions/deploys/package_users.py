"""Which functions use a package of the install cache, deploys and debuggers under way included.

Owns the list of current deploys, whose packages are in use although no record names them yet.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from sockd.functions.registry.registry import Registry
from sockd.functions.serving.debugging import Debugging
from sockd.functions.serving.live_functions import LiveFunctions
from sockd.starts.packages.distribution import Closure


class DeployedPackages:
    """The packages of deploys that are not recorded yet."""

    def __init__(self) -> None:
        self._under_way: list[tuple[str, Closure]] = []

    @contextlib.contextmanager
    def holding(self, name: str, closure: Closure) -> Iterator[None]:
        """Count installed packages as used by a deploy until the block ends."""
        deploying = (name, closure)
        self._under_way.append(deploying)
        try:
            yield
        finally:
            self._under_way.remove(deploying)

    def users(self, key: str) -> list[str]:
        """The functions that are being deployed with a distribution in their closure."""
        return [name for name, closure in self._under_way if key in closure.keys]


class PackageUsers:
    """The users of the packages of one worker."""

    def __init__(
        self, registry: Registry, live: LiveFunctions, deploying: DeployedPackages, debugging: Debugging
    ) -> None:
        self._registry = registry
        self._live = live
        self._deploying = deploying
        self._debugging = debugging

    def of(self, key: str) -> list[str]:
        """The functions that have a distribution in their closure, by name."""
        live = [version.record.name for version in self._live.all() if key in version.keys]
        registry = self._registry
        recorded = {(each.name, each.closure) for each in registry.list()}
        recorded |= {
            (each.name, registry.of(each.name).deploy(each.version).closure) for each in registry.publications()
        }
        others = [name for name, closure in recorded if key in _keys(closure)]
        return sorted({*live, *others, *self._deploying.users(key), *self._debugging.users(key)})


@functools.lru_cache(maxsize=1024)
def _keys(closure: str) -> frozenset[str]:
    """Return the distributions of a recorded closure. Many functions have the same one, and each package asks for all."""
    return frozenset(Closure.from_json(closure).keys)
