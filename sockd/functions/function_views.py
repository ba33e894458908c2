"""Functions as people see them, also those that cannot run.

Owns nothing.
"""

from __future__ import annotations

import msgspec

from sockd.base.telemetry import FunctionInfo
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.live_functions import LiveFunctions
from sockd.functions.serving.snapshots import Snapshots
from sockd.functions.serving.version import Version, info_of
from sockd.starts.packages.distribution import Closure


class FunctionViews:
    """The views of all functions of a worker."""

    def __init__(self, registry: Registry, live: LiveFunctions, snapshots: Snapshots) -> None:
        self._registry = registry
        self._live = live
        self._snapshots = snapshots

    def all(self) -> list[FunctionInfo]:
        """All functions, by name."""
        return [self.info(name) for name in self._live.names()]

    def info(self, name: str) -> FunctionInfo:
        """A function, whatever of it is missing. Raises: NoSuchFunction."""
        if name in self._live.by_name:
            return self.described(self._live.by_name[name].version)
        record = self._registry.get(name)
        info = info_of(record, record.readable, Closure.from_json(record.closure))
        info = msgspec.structs.replace(info, has_private=self._registry.of(name).has_private)
        if (unready := self._live.restoring.unready.get(name)) is None:
            return info
        return msgspec.structs.replace(info, state=unready.state, state_reason=unready.error.message)

    def described(self, version: Version) -> FunctionInfo:
        """A version, with what is known of its function."""
        has_private, is_app = self._registry.of(version.record.name).has_private, bool(version.program.is_app)
        info = msgspec.structs.replace(version.info(), has_private=has_private, is_app=is_app)
        entry = self._snapshots.of(version)
        if entry is None:
            return info
        return msgspec.structs.replace(info, snapshot=entry.state.value, snapshot_reason=entry.reason)
