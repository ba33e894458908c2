"""A `FunctionStore` in memory: several registries may share it, as workers share a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.function_store import Conflict, FunctionStore


class MemoryStore:
    """Keeps nothing when it is gone."""

    key_path = Path("/nonexistent")

    def __init__(self) -> None:
        self._functions: dict[str, FunctionAggregate] = {}
        self._revision = 0

    def __iter__(self) -> Iterator[FunctionAggregate]:
        return iter(list(self._functions.values()))

    def get(self, name: str) -> FunctionAggregate:
        return self._functions.get(name, FunctionAggregate(name))

    def put(self, new: FunctionAggregate, *, expected: FunctionAggregate) -> FunctionAggregate:
        self._expect(expected)
        self._revision += 1
        self._functions[new.name] = replace(new, revision=self._revision)
        return self._functions[new.name]

    def remove(self, expected: FunctionAggregate) -> None:
        self._expect(expected)
        self._functions.pop(expected.name, None)

    def close(self) -> None:
        pass

    def _expect(self, expected: FunctionAggregate) -> None:
        if self.get(expected.name).revision != expected.revision:
            raise Conflict(expected.name)


_verified: type[FunctionStore] = MemoryStore
