"""The deploys of a worker: each is a `Deploy`, whose code is no garbage while it is under way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sockd.base.blocking import in_thread
from sockd.base.notes import Progress
from sockd.functions.code.setting_checks import check_name
from sockd.functions.deploys.deploy import Deploy
from sockd.functions.deploys.parts import DeployParts
from sockd.functions.serving.snapshots import Snapshots
from sockd.functions.serving.version import Version


class Deploys:
    """The deploys of all functions."""

    def __init__(self, parts: DeployParts, snapshots: Snapshots) -> None:
        self._parts = parts
        self._snapshots = snapshots

    async def deploy(
        self, name: str, zip_path: Path, overrides: dict[str, Any], progress: Progress, wasm: bytes | None = None
    ) -> Version:
        """Publish a version, start it once, and switch to it.

        Args:
            overrides: keys of sockd.toml, its `deployer`, and what else is in `parsing.NO_SETTINGS`.
            wasm: its initscript, uploaded with the code.
        Raises: NameTaken, SecretsLocked, BadArchive, BadFunctionConfig, BadInitscript, PackagesFailed, NoCapacity; VersionFailed,
            and what else a start raises: its check failed, and nothing has changed."""
        check_name(name)
        try:
            async with self._parts.in_use.published(zip_path) as code:
                if self._parts.shared is not None:
                    await self._parts.shared.put_code(code.digest, zip_path)
                version = await Deploy(self._parts, name, code, overrides, progress, wasm).run()
                if version.config.snapshot and "aws" not in overrides:  # AWS's API does not wait either
                    await self._snapshots.settled(version, progress)
                return version
        finally:
            await self._parts.garbage.collect()

    async def check_archive(self, zip_path: Path) -> None:
        """Check whether an archive could be deployed. Raises: BadArchive, StorageFull."""
        await in_thread(self._parts.code.check, zip_path)
