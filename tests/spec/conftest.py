"""Promises of SPECIFICATION.md: what they name exists, and small cases (group S) for those that no other test proves."""

from tests.support.cases import happened
from tests.support.private_worker import ledger, package_worker, worker

__all__ = ["happened", "ledger", "package_worker", "worker"]
