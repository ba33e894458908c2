"""Policies of functions: which there are, and how their statements are added and removed.

Owns nothing: each policy is part of its function's aggregate in the registry, and goes with its function, version or alias.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.policy import Policy, Statement
from sockd.functions.registry.registry import Registry


class FunctionPolicies:
    """The policies of all functions."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def of(self, name: str, qualifier: str = "") -> Policy:
        """The policy of a function, or of a version or alias of it; an empty one if there is none."""
        return self._registry.of(name).policies.get(qualifier) or Policy()

    async def add(self, name: str, qualifier: str, statement: Statement) -> Policy:
        """Add a statement. Raises: StatementExists, NoSuchFunction, StorageFull."""
        return await self._change(name, qualifier, lambda policy: policy.with_statement(statement, _revision()))

    async def remove(self, name: str, qualifier: str, id: str) -> Policy:
        """Remove a statement. Raises: NoSuchStatement, NoSuchFunction, StorageFull."""
        return await self._change(name, qualifier, lambda policy: policy.without_statement(id, _revision()))

    async def _change(self, name: str, qualifier: str, change: Callable[[Policy], Policy]) -> Policy:
        def changed(function: FunctionAggregate) -> FunctionAggregate:
            return function.with_policy(qualifier, change(function.policies.get(qualifier) or Policy()))

        return (await self._registry.change(name, changed)).policies[qualifier]


def _revision() -> str:
    return str(uuid.uuid4())
