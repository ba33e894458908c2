"""What an install cache has on the disk, and a file that makes a wheel slow to install."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from sockd.starts.packages.install_cache import InstallCache

Opened = Callable[..., AbstractAsyncContextManager[InstallCache]]
NOISE = random.Random(1).randbytes(200_000)
"""Data that no wheel makes smaller."""


def nothing_half_done(state: Path) -> bool:
    """Whether tmp and uv's cache hold nothing that is neither published nor finished."""
    return os.listdir(state / "tmp" / "packages") == [] and not list((state / "uv-cache").glob(".tmp*"))


def stored(state: Path) -> set[str]:
    return set(os.listdir(state / "packages")) - {".meta"}
