"""The last step of every change of a function: the registry records it, which gives the requests to the new version.

Owns the failures of last deploys, which views show.
"""

from __future__ import annotations

from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys.deploy_check import NOT_CHECKED, Checked, FailedDeploy
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.function import WORTH_RECORDING_NS
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

    async def put(self, record: FunctionRecord, checked: Checked = NOT_CHECKED, *, anew: bool = False) -> Version:
        """Record a changed function, which serves from then on; if that is what serves already, nothing changes.

        Args:
            checked: what came of its check.
            anew: whether a version that serves already is started anew.
        Raises: as `Registry.put`; NoCapacity, and what else it lacks: it is recorded, and serves when it can."""
        before = self._live.by_name.get(record.name)
        served = before.version if before is not None else None
        put = await self._put(record)
        version = self._served(put)
        if version is None or (anew and version is served):
            version = self._live.switch(self._files.load(put))
        self.note_failed(record.name, checked.failed)
        self._note_check(version, checked)
        return version

    def _note_check(self, version: Version, checked: Checked) -> None:
        """Tell a function that serves what is known of its starts."""
        if version.program.is_app is None:
            version.program.is_app = checked.is_app
        if checked.init_ns >= WORTH_RECORDING_NS:
            self._live.by_name[version.record.name].learn()

    def _served(self, record: FunctionRecord) -> Version | None:
        """Return the version of a record, if that is what serves."""
        function = self._live.by_name.get(record.name)
        return function.version if function is not None and function.version.record == record else None

    async def amend(self, version: Version, config: FunctionConfig) -> Version:
        """Give a version that serves other settings, which its sandboxes do not have to know."""
        await self._registry.amend(version.record, config.to_json())
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
