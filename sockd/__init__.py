"""sockd: a serverless platform for Python on one Linux machine. ARCHITECTURE.md says which room holds what.

For people who write functions, `sockd.function` and its errors are here (`sockd.client.python`), imported when they are asked
for; type checkers find them in `__init__.pyi`.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = [
    "DeployFailed",
    "NameTaken",
    "NoWorker",
    "OtherCode",
    "RemoteError",
    "RemoteFunction",
    "UnverifiedAnswer",
    "function",
]

TYPE_CHECKING = False  # typing would be most of what this file costs; type checkers know this name
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("sockd.client.python"), name)
    raise AttributeError(f"module 'sockd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
