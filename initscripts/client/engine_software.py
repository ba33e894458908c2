"""What the engine, and the compiler of initscripts, import."""

from __future__ import annotations

import importlib.util

from sockd.linux.confined.software import Places, software

OURS = ("sockd", "sockd_initscripts", "sockd_storage_lib", "sockd_zygote")
LIBRARIES = ("wasmtime", "certifi", "grpc", "msgspec", "uvloop")
NEEDED = ("wasmtime", "certifi", "grpc")
"""What the extra `initscripts` installs, and the worker runs without."""


def places() -> Places:
    """Where it is in the engine's tree."""
    return software(OURS, LIBRARIES)


def missing() -> list[str]:
    """Which of the packages that only initscripts need are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]
