"""Changes of a deployed function without new code: its settings, its initscript, or an earlier deploy again.

Owns nothing. Each change but one of network rules alone is a new version. A change of settings can be checked as a deploy is: the
new version is started once before it serves.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from sockd.base.errors import VersionFailed
from sockd.base.notes import Progress
from sockd.functions.code import kept_settings
from sockd.functions.code.function_config import FunctionConfig, InitscriptConfig
from sockd.functions.deploys.deploy_check import NOT_CHECKED, Checked, FailedDeploy, started_once
from sockd.functions.deploys.image_contents import check_writable_root
from sockd.functions.deploys.parts import DeployParts
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.serving.version import Version
from sockd.isolation.roots import interpreter_settings

DECIDE_HANDLER = frozenset({"handler", "runtime", "image", "entrypoint", "command", "working_directory", "app_port"})
"""Settings that decide which handler or program runs."""


ChangesOf = Callable[[FunctionConfig], dict[str, Any]]
"""What to change of settings: keys of `sockd.toml` with their new values. Raises: SockdError, to change nothing."""


class Planned(NamedTuple):
    """A change of settings before it is recorded."""

    current: Version
    """The version that serves."""
    names: frozenset[str]
    """The settings that are changed."""
    record: FunctionRecord
    """What would be recorded."""


class Changes:
    """The changes of all functions of a worker."""

    def __init__(self, parts: DeployParts) -> None:
        self._parts = parts

    async def configure(self, name: str, changes: dict[str, Any], *, is_checked: bool = False) -> Version:
        """Change settings with unchanged code and packages, as a new version; `egress` alone without one.

        Args:
            changes: keys of `sockd.toml` with their new values.
            is_checked: whether a version whose starts differ is started once before it serves.
        Raises: NoSuchFunction, BadFunctionConfig, NetworkUnavailable, NoCapacity; VersionFailed, and what else a start raises:
            its check failed, and nothing has changed."""
        return await self.reconfigure(name, lambda config: changes, is_checked=is_checked)

    async def reconfigure(self, name: str, changes_of: ChangesOf, *, is_checked: bool = False) -> Version:
        """Change settings as `configure`, by what they are: they may change while a version is started once.

        Args: changes_of: called anew if another change has come first."""
        await self._parts.live.get(name)
        try:
            async with contextlib.AsyncExitStack() as held:
                checked, planned = NOT_CHECKED, await self._planned(name, changes_of)
                while is_checked:
                    checked = await self._check(planned, held)
                    if self._parts.live.current(name) is planned.current:
                        break
                    planned = await self._planned(name, changes_of)
                config, names = planned.record.settings, planned.names
                async with self._parts.rules.enforced(name, config, are_given="egress" in names):
                    if names == {"egress"}:
                        return await self._parts.switching.amend(planned.current, config)
                    await self._parts.reserved.wait(name, config)
                    return await self._parts.switching.put(planned.record, checked)
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

    async def _planned(self, name: str, changes_of: ChangesOf) -> Planned:
        """Decide what would be recorded for changes of the version that serves. Raises: as `configure`."""
        current = self._parts.live.current(name)
        changes = changes_of(current.config)
        config = kept_settings.marked(current.config, current.config.changed(changes), changes)
        self._check_variables(current, config)
        await check_writable_root(config, self._parts.caches.images)
        if "egress" in changes and not self._parts.registry.of(name).has_private:
            config.check_egress()
        self._parts.reserved.check(name, config)
        handler = current.record.handler  # which the deploy has found, perhaps by the code's text
        if DECIDE_HANDLER & changes.keys():
            handler = self._parts.files.handler(current.record, config)
        record = dataclasses.replace(current.record, handler=handler, config=config.to_json())
        return Planned(current, frozenset(changes), record)

    async def _check(self, planned: Planned, held: contextlib.AsyncExitStack) -> Checked:
        """Start the changed version once, if its starts differ from those of the version that serves.

        POLICY: a function that does not start anyway may be changed, as it may need several changes until it does.
        Args: held: gets what is to last until the switch. Raises: VersionFailed; as `deploy_check.started_once`."""
        parts = self._parts
        version = parts.files.load(planned.record)
        if version.program.starts_as(planned.current.program):
            version.close()
            return NOT_CHECKED
        try:
            return await held.enter_async_context(started_once(version, parts.caches, is_known=True))
        except VersionFailed as error:
            if await self._starts(planned.current.record):
                raise
            return Checked(FailedDeploy(error.reason, is_live=True))

    async def _starts(self, record: FunctionRecord) -> bool:
        """Start a version once. Returns: whether it started. Raises: as `deploy_check.started_once`."""
        try:
            async with started_once(self._parts.files.load(record), self._parts.caches, is_known=True):
                return True
        except VersionFailed:
            return False

    def _check_variables(self, current: Version, config: FunctionConfig) -> None:
        """Refuse variables that the interpreter would ignore, but for those that the function has already.

        Raises: BadFunctionConfig."""
        started = self._parts.files.interpreter(current.record, config)
        if started is not None:
            is_same = self._parts.files.interpreter(current.record, current.config) == started
            interpreter_settings.check(config.environment, started, current.config.environment if is_same else {})
