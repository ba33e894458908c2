"""The fixtures of the fault-injection suite: a private worker for this folder."""

from tests.support.cases import happened
from tests.support.private_worker import ledger, package_worker, worker

__all__ = ["happened", "ledger", "package_worker", "worker"]
