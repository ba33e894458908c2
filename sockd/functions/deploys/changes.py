"""Changes of a deployed function without new code: its settings, its initscript, or an earlier deploy again.

Owns nothing. Each change but one of network rules alone is a new version.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from sockd.base.notes import Progress
from sockd.functions.code import kept_settings
from sockd.functions.code.function_config import FunctionConfig, InitscriptConfig
from sockd.functions.deploys.image_contents import check_writable_root
from sockd.functions.deploys.parts import DeployParts
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.serving.version import Version
from sockd.isolation.roots import interpreter_settings

DECIDE_HANDLER = frozenset({"handler", "runtime", "image", "entrypoint", "command", "working_directory", "app_port"})
"""Settings that decide which handler or program runs."""


class Changes:
    """The changes of all functions of a worker."""

    def __init__(self, parts: DeployParts) -> None:
        self._parts = parts

    async def configure(self, name: str, changes: dict[str, Any]) -> Version:
        """Change settings with unchanged code and packages, as a new version; `egress` alone without one.

        Args: changes: keys of `sockd.toml` with their new values.
        Raises: NoSuchFunction, BadFunctionConfig, NetworkUnavailable, NoCapacity."""
        await self._parts.live.get(name)
        try:
            current = self._parts.live.current(name)
            config = kept_settings.marked(current.config, current.config.changed(changes), changes)
            self._check_variables(current, config)
            await check_writable_root(config, self._parts.caches.images)
            if "egress" in changes and not self._parts.registry.of(name).has_private:
                config.check_egress()
            self._parts.reserved.check(name, config)
            async with self._parts.rules.enforced(name, config, are_given="egress" in changes):
                if changes.keys() == {"egress"}:
                    return await self._parts.switching.amend(current, config)
                handler = current.record.handler  # which the deploy has found, perhaps by the code's text
                if DECIDE_HANDLER & changes.keys():
                    handler = self._parts.files.handler(current.record, config)
                changed = dataclasses.replace(current.record, handler=handler, config=config.to_json())
                return await self._parts.switching.put(changed)
        finally:
            await self._parts.garbage.collect()

    async def deploy_initscript(self, name: str, wasm: bytes, progress: Progress) -> Version:
        """Deploy another initscript with unchanged code and settings, as a new version.

        Raises: NoSuchFunction, BadInitscript, NoCapacity."""
        await self._parts.live.get(name)
        try:
            async with self._parts.scripts.compiled(wasm, progress) as digest:
                record = self._parts.live.current(name).record
                config = record.settings
                if config.initscript is None or config.initscript.wasm is not None:
                    settings = msgspec.structs.replace(config.initscript or InitscriptConfig(), wasm=None)
                    config = msgspec.structs.replace(config, initscript=settings)
                return await self._parts.switching.put(
                    dataclasses.replace(record, config=config.to_json(), initscript=digest)
                )
        finally:
            await self._parts.garbage.collect()

    async def restore(self, old: FunctionRecord) -> Version:
        """Deploy the code of an earlier deploy again; secrets and shared limits do not change.

        Raises: NoSuchFunction, InstallFailed, NoCapacity."""
        current = (await self._parts.live.get(old.name)).version
        with self._parts.in_use.holding(old.digest):
            await self._parts.files.restore(old)
            config = old.settings.with_shared(current.config).with_secrets(current.config.secrets)
            self._parts.reserved.check(old.name, config)
            async with self._parts.rules.enforced(old.name, config, are_given=False):
                restored = await self._parts.switching.put(dataclasses.replace(old, config=config.to_json()))
        await self._parts.garbage.collect()
        return restored

    def _check_variables(self, current: Version, config: FunctionConfig) -> None:
        """Refuse variables that the interpreter would ignore, but for those that the function has already.

        Raises: BadFunctionConfig."""
        started = self._parts.files.interpreter(current.record, config)
        if started is not None:
            is_same = self._parts.files.interpreter(current.record, current.config) == started
            interpreter_settings.check(config.environment, started, current.config.environment if is_same else {})
