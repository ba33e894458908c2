"""Functions as the APIs list, change and remove them, with everything of the worker that belongs to a function.

Owns nothing. How a deploy went stays in the worker's own log.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

from sockd.base.errors import SockdError
from sockd.base.notes import Progress
from sockd.base.telemetry import FunctionInfo
from sockd.functions.deploys.disabling import changes_to_disable, changes_to_enable
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.http.worker_values import Details
from sockd.observe.observations import Observations
from sockd.worker.asynchronous import Asynchronous
from sockd.worker.worker import Worker

_log = logging.getLogger(__name__)


class ManagedFunctions:
    """As `sockd.http.worker.Functions`."""

    def __init__(self, worker: Worker, later: Asynchronous, observations: Observations) -> None:
        self._config = worker.config.function
        self._functions = worker.functions
        self._services = worker.services
        self._versions = worker.versions
        self._budget = worker.budget
        self._reserve = worker.reserve
        self._later = later
        self._observations = observations
        self.run_rules = worker.functions.live.request_settings.run_rules
        self.error_details = worker.functions.live.request_settings.error_details
        self.all = worker.functions.views.all
        self.info = worker.functions.views.info
        self.check_archive = worker.functions.deploys.check_archive
        worker.functions.registry.followers.append(self._reconcile)

    def details(self, name: str, qualifier: str = "") -> Details:
        """The last deploy, or what a number or an alias means. Raises: NoSuchFunction, NoSuchVersion, SecretsLocked."""
        details = Details.of(self._versions.get(name, qualifier))
        if details.publication is None:
            return self._with_state(details)
        return details._replace(snapshot=self._functions.snapshots.state(name, details.publication.number))

    def all_details(self) -> list[Details]:
        """The last deploys of all functions, by name."""
        return [self._with_state(Details(each, each.readable)) for each in self._functions.registry.list()]

    def _with_state(self, details: Details) -> Details:
        """Args: details: of $LATEST."""
        name, functions = details.record.name, self._functions
        return details._replace(
            failed=functions.switching.failed.get(name),
            unready=functions.live.restoring.unready.get(name),
            snapshot=functions.snapshots.state(name),
        )

    def default_concurrency(self) -> int:
        return self._config.concurrency

    def sandboxes_that_fit(self) -> int:
        return self._budget.total // (self._config.memory_mb << 20)

    async def deploy(
        self,
        name: str,
        zip_path: Path,
        *,
        overrides: dict[str, Any],
        progress: Progress,
        initscript: bytes | None = None,
    ) -> FunctionInfo:
        """Publish a version and switch to it."""

        def log(line: str) -> None:
            _log.info("deploy of %s: %s", name, line)
            progress(line)

        try:
            version = await self._functions.deploys.deploy(name, zip_path, overrides, log, initscript)
        except SockdError as error:
            _log.warning("deploy of %s: %s: %s", name, error.error_type, error.message)
            raise
        info = self._functions.views.described(version)
        _log.info(
            "deploy of %s: version %d, packages: %s", name, info.version_number, ", ".join(info.packages) or "none"
        )
        return info

    async def deploy_initscript(self, name: str, initscript: bytes, progress: Progress) -> FunctionInfo:
        """Give a function another initscript."""
        version = await self._functions.changes.deploy_initscript(name, initscript, progress)
        return self._functions.views.described(version)

    async def configure(self, name: str, changes: dict[str, Any], *, is_checked: bool = False) -> None:
        """Change settings of a function, not its code. A checked change waits for the snapshot that it asks for."""
        version = await self._functions.changes.configure(name, changes, is_checked=is_checked)
        if is_checked and changes.get("snapshot"):
            await self._functions.snapshots.settled(version, partial(_log.info, "%s: %s", name))

    async def disable(self, name: str) -> None:
        """Refuse all requests of a function until it is enabled. Raises: as `configure`."""
        await self.configure(name, changes_to_disable(self._functions.live.settings(name)))

    async def enable(self, name: str) -> None:
        """Give a function the concurrency that it had. Raises: as `configure`."""
        former = [each.readable for each in self._versions.deploys(name)]
        settings = self._functions.live.settings(name)
        await self.configure(name, changes_to_enable(settings, former, self.default_concurrency()))

    async def remove(self, name: str) -> None:
        """Forget a function, its logs and its numbers."""
        removing = self._reserve.removing
        await self._services.stop(name)
        await removing(lambda: self._functions.remove(name))
        await removing(lambda: self._later.forget(name))
        self._observations.forget(name)

    def _reconcile(self, old: FunctionAggregate, new: FunctionAggregate) -> None:
        """Forget the logs and the numbers of a function that any worker has removed."""
        if old.deploys and not new.deploys:
            self._observations.forget(new.name)

    async def delete_version(self, name: str, number: int) -> None:
        """Delete a published version, with its schedules and how its events end."""
        removing = self._reserve.removing
        await removing(lambda: self._versions.delete(name, number))
        await removing(lambda: self._later.forget_qualifier(name, str(number)))

    async def delete_alias(self, name: str, alias: str) -> None:
        """Delete an alias, with its URL, its schedules and how its events end."""
        removing = self._reserve.removing
        await removing(lambda: self._versions.delete_alias(name, alias))
        await removing(lambda: self._later.forget_qualifier(name, alias))
