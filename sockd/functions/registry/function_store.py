"""Where functions are kept: the interface of a store of aggregates that several writers may share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sockd.base.errors import SockdError
from sockd.functions.registry.aggregate import FunctionAggregate


class Conflict(SockdError):
    """Another writer has changed the function since it was read; nothing was stored."""

    status = 409
    error_type = "ResourceConflictException"

    def __init__(self, name: str) -> None:
        super().__init__(f"function {name!r} was changed by someone else at the same time; try again")


class FunctionStore(Protocol):
    """One aggregate for each name, changed by compare-and-set. A store seals environments; its readers get them opened."""

    @property
    def key_path(self) -> Path:
        """The file of the key that environments are sealed with."""

    async def read(self) -> Sequence[FunctionAggregate]:
        """Return all that are stored."""

    async def get(self, name: str) -> FunctionAggregate:
        """Return the stored one, or the empty one."""

    async def put(self, new: FunctionAggregate, *, expected: FunctionAggregate) -> FunctionAggregate:
        """Replace what was read by another value, which is returned with its revision; a revision is used once.

        Raises: Conflict if the stored revision is not that of `expected`; StorageFull; SecretsLocked when there is an
            environment to seal and no key."""

    async def remove(self, expected: FunctionAggregate) -> None:
        """Raises: Conflict as `put`; StorageFull."""

    async def aclose(self) -> None: ...
