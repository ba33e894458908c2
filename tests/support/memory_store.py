"""A `FunctionStore` in memory: several registries may share it, as workers share a store."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.function_store import Conflict, FunctionStore

T = TypeVar("T")


class MemoryStore:
    """Keeps nothing when it is gone, and has nobody wait."""

    key_path = Path("/nonexistent")

    def __init__(self) -> None:
        self._functions: dict[str, FunctionAggregate] = {}
        self._revision = 0

    async def read(self) -> Sequence[FunctionAggregate]:
        return list(self._functions.values())

    async def get(self, name: str) -> FunctionAggregate:
        return self._functions.get(name, FunctionAggregate(name))

    async def put(self, new: FunctionAggregate, *, expected: FunctionAggregate) -> FunctionAggregate:
        self._expect(expected)
        self._revision += 1
        self._functions[new.name] = replace(new, revision=self._revision)
        return self._functions[new.name]

    async def remove(self, expected: FunctionAggregate) -> None:
        self._expect(expected)
        self._functions.pop(expected.name, None)

    async def aclose(self) -> None:
        pass

    def _expect(self, expected: FunctionAggregate) -> None:
        stored = self._functions.get(expected.name)
        if (stored.revision if stored else 0) != expected.revision:
            raise Conflict(expected.name)


def at_once(change: Coroutine[Any, Any, T]) -> T:
    """Run a change of a registry in memory, which does not wait; return what it returns."""
    try:
        change.send(None)
    except StopIteration as done:
        returned: T = done.value
        return returned
    raise AssertionError("it waits for something")


_verified: type[FunctionStore] = MemoryStore
