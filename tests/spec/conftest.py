"""Promises of SPECIFICATION.md: what they name exists, and small cases (group S) for those that no other test proves."""

from tests.support.cases import happened
from tests.support.private_worker import house, ledger, worker

__all__ = ["happened", "house", "ledger", "worker"]
