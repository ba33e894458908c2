"""The last step of every change of a function: the registry records it, and requests get the new version.

Owns the failures of last deploys, which views show.
"""

from __future__ import annotations

from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys.deploy_check import FailedDeploy
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.live_functions import LiveFunctions
from sockd.functions.serving.version import Version
from sockd.functions.serving.version_files import VersionFiles


class Switching:
    """The recorded changes of all functions of a worker."""

    def __init__(self, registry: Registry, live: LiveFunctions, files: VersionFiles) -> None:
        self._registry = registry
        self._live = live
        self._files = files
        self.failed: dict[str, FailedDeploy] = {}
        """The functions whose last deploy failed its check."""

    async def record(self, record: FunctionRecord) -> Version:
        """Record a deploy; its version serves nothing yet. Raises: as `Registry.put`."""
        return self._files.load(await self._put(record))

    def switch(self, version: Version, failed: FailedDeploy | None = None) -> Version:
        """Give a recorded version the requests. Args: failed: how its check failed. Raises: NoCapacity."""
        self._live.switch(version)
        self.note_failed(version.record.name, failed)
        return version

    async def put(self, record: FunctionRecord) -> Version:
        """Record a changed function and switch to it; if that is what serves already, nothing changes. Raises: as `record`,
        `switch`."""
        put = await self._put(record)
        live = self._live.by_name.get(record.name)
        if live is not None and live.version.record.version == put.version:
            self.note_failed(record.name, None)
            return live.version
        return self.switch(self._files.load(put))

    async def amend(self, version: Version, config: FunctionConfig) -> Version:
        """Give a version other settings, which its sandboxes do not have to know."""
        version.record = await self._registry.amend(version.record, config.to_json())
        version.config = config
        return version

    def note_failed(self, name: str, failed: FailedDeploy | None) -> None:
        """Note how the last deploy of a function failed; None: it did not."""
        if failed is None:
            self.failed.pop(name, None)
        else:
            self.failed[name] = failed

    async def _put(self, record: FunctionRecord) -> FunctionRecord:
        return await self._registry.put(
            record.name,
            digest=record.digest,
            code_bytes=record.code_bytes,
            handler=record.handler,
            config=record.config,
            closure=record.closure,
            initscript=record.initscript,
            image=record.image,
        )
