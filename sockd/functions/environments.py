"""Showing and changing environments of functions: variables, and secrets, whose values are never shown.

Owns nothing: a change is a new version of the function, which `Changes` makes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from sockd.base.errors import BadFunctionConfig, NoSuchVariable, SecretsLocked
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys.changes import Changes
from sockd.functions.serving.live_functions import LiveFunctions


class Environments:
    """The environments of all functions of a worker."""

    def __init__(self, live: LiveFunctions, changes: Changes) -> None:
        self._live = live
        self._changes = changes

    def show(self, name: str, *, values: bool) -> dict[str, Any]:
        """`env`, with values or with None for each, and the names of `secrets`. Raises: NoSuchFunction, SecretsLocked."""
        config = self._live.settings(name)
        env = config.env if values else dict.fromkeys(config.env)
        return {"env": {key: env[key] for key in sorted(env)}, "secrets": sorted(config.secrets)}

    def secrets(self) -> dict[str, list[str]]:
        """The names of the secrets of every function that has any."""
        found = {}
        for name in self._live.names():
            with contextlib.suppress(SecretsLocked):  # not known then
                found[name] = sorted(self._live.settings(name).secrets)
        return {name: names for name, names in found.items() if names}

    async def change(
        self, name: str, given: Mapping[str, str], unset: Iterable[str], *, is_checked: bool = False
    ) -> None:
        """Set and remove variables. Raises: NoSuchVariable; as `Changes.configure`, which is given `is_checked`."""

        def changes(config: FunctionConfig) -> dict[str, Any]:
            for key in given:
                if key in config.secrets:
                    raise BadFunctionConfig(f"{key!r} is a secret of this function: `sockd secret set {name} {key}`")
            return {"env": _without(name, config.env, unset, "variable") | dict(given)}

        await self._changes.reconfigure(name, changes, is_checked=is_checked)

    async def set_secret(self, name: str, key: str, value: str, *, is_checked: bool = False) -> None:
        """Set one secret. Raises: as `Changes.configure`, which is given `is_checked`."""
        await self._changes.reconfigure(
            name, lambda config: {"secrets": config.secrets | {key: value}}, is_checked=is_checked
        )

    async def remove_secret(self, name: str, key: str, *, is_checked: bool = False) -> None:
        """Remove one secret. Raises: NoSuchVariable; as `Changes.configure`, which is given `is_checked`."""
        await self._changes.reconfigure(
            name, lambda config: {"secrets": _without(name, config.secrets, [key], "secret")}, is_checked=is_checked
        )


def _without(function: str, known: dict[str, str], names: Iterable[str], kind: str) -> dict[str, str]:
    rest = dict(known)
    for name in names:
        if rest.pop(name, None) is None:
            raise NoSuchVariable(f"{function!r} has no {kind} {name[:80]!r}; `sockd env {function}` lists them")
    return rest
