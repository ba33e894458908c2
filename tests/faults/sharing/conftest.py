"""The sharing cases have workers of their own."""

from tests.support.cases import happened
from tests.support.private_worker import ledger

__all__ = ["happened", "ledger"]
