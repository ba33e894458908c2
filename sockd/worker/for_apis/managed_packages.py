"""The packages of the install cache, as the APIs list and change them.

Owns nothing.
"""

from __future__ import annotations

from typing import Any

from sockd.base.notes import Progress
from sockd.worker.for_apis.import_report import imports
from sockd.worker.for_apis.status_views import package_rows
from sockd.worker.worker import Worker


class ManagedPackages:
    """As `sockd.http.worker.Packages`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def all(self) -> list[dict[str, Any]]:
        return package_rows(self._worker)

    async def add(self, requirements: str, progress: Progress) -> list[str]:
        """Resolve and install. Returns: the keys of the closure. Raises: PackagesFailed."""
        packages = self._worker.packages
        progress("resolving")
        closure = await packages.resolve(requirements)
        await packages.ensure(closure, progress=progress)
        return sorted(closure.keys)

    def forgive(self, name: str | None) -> list[str]:
        """Let Zygotes import a package again, or all. Returns: the keys that were refused."""
        forgiven = {*self._worker.learner.forgive(name), *self._worker.verifier.forgive(name)}
        return sorted(forgiven)

    async def remove(self, key: str) -> None:
        """Delete one distribution. Raises: SockdError: there is none, or it is in use."""
        await self._worker.packages.remove(key, users=self._worker.functions.package_users.of)
        self._worker.learner.forget(key)

    def imports(self, name: str) -> dict[str, Any]:
        return imports(self._worker, name)
