"""Published versions in use: each has its own sandboxes, and becomes live at its first request.

Owns the live ones: a bounded number of the most recently used, and all that run a request or are provisioned. The function's
`Allowance` limits concurrent requests over all versions.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from sockd.base.errors import NoSuchVersion, SockdError
from sockd.functions.registry.aliases import LATEST, number_of
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.function import Caches, Function
from sockd.functions.serving.version import Version


class Published:
    """`get` finds one. For one event loop."""

    def __init__(
        self,
        registry: Registry,
        restore_files: Callable[[FunctionRecord], Awaitable[None]],
        caches: Caches,
        *,
        version_of: Callable[[FunctionRecord, str], Version],
        allowance_of: Callable[[str], Allowance],
        most: int,
    ) -> None:
        """Args:
        restore_files: see that a deploy's packages and its image are there.
        most: how many stay live that are not used."""
        self._registry = registry
        self._restore_files = restore_files
        self._caches = caches
        self._version_of = version_of
        self._allowance_of = allowance_of
        self._most = most
        self._live: OrderedDict[tuple[str, int], Function] = OrderedDict()
        """Least recently used first."""

    def resolve(self, name: str, qualifier: str, draw: float) -> int | None:
        """The number that a request for a qualifier gets; None: $LATEST.

        Args: draw: in [0, 1), evenly distributed; the same one always finds the same version.
        Raises: NoSuchVersion, for an unknown alias."""
        if qualifier == LATEST:
            return None
        number = number_of(qualifier)
        return number_of(self._registry.of(name).alias(qualifier).pick(draw)) if number is None else number

    def is_known(self, name: str, qualifier: str) -> bool:
        """Whether there is such a version or alias."""
        try:
            number = self.resolve(name, qualifier, 0.0)
        except NoSuchVersion:
            return False
        return number is None or number in self._registry.of(name).publications

    async def get(self, name: str, number: int) -> Function:
        """A live published version. Raises: NoSuchVersion; InstallFailed if lost packages cannot be installed again."""
        key = (name, number)
        function = self._live.get(key)
        if function is None:
            _, record = self._registry.of(name).published(number)
            await self._restore_files(record)
            self._registry.of(name).published(number)  # it may have been deleted in the meantime
            function = self._live.get(key) or self._open(key, record)
        self._live.move_to_end(key)
        return function

    def reopen(self, name: str, number: int) -> None:
        """Make a version live that an earlier worker had; one that is gone or lacks something is left to its first request."""
        with contextlib.suppress(SockdError, OSError):
            _, record = self._registry.of(name).published(number)
            self._open((name, number), record)

    def find(self, name: str, number: int) -> Function | None:
        """A published version, if it is live."""
        return self._live.get((name, number))

    def live(self) -> list[Function]:
        """All that are live."""
        return list(self._live.values())

    def drop(self, name: str, number: int | None = None) -> list[Function]:
        """Close one version of a function, or all; returns what was live: its last requests may still run."""
        keys = [key for key in self._live if key[0] == name and number in (None, key[1])]
        dropped = [self._live.pop(key) for key in keys]
        for function in dropped:
            function.close()
        return dropped

    def close(self) -> None:
        for function in self._live.values():
            function.close()
        self._live.clear()

    def _open(self, key: tuple[str, int], record: FunctionRecord) -> Function:
        name, number = key
        version = self._version_of(record, str(number))
        function = self._live[key] = Function(version, self._caches, self._allowance_of(name))
        self._shrink()
        return function

    def _shrink(self) -> None:
        """Close those that were used longest ago; never the newest."""
        surplus = len(self._live) - max(self._most, 1)
        for key, function in list(self._live.items())[:-1]:
            if surplus <= 0:
                return
            if not function.running and not function.pools:
                del self._live[key]
                function.close()
                surplus -= 1
