"""Where 411 has torch from, and what that changes of a package and of the worker that it is deployed on.

system  Debian's packages, which a sandbox sees as it sees all of /usr; no Zygote imports them
index   the builds for processors alone that the suite pins, from torch's own index
pypi    the same versions from PyPI, whose builds bring CUDA along (5 GB on the disk) and run without it
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from benchmarks.sebs_runner.errors import NotPossible

SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")
CPU_INDEX = {
    "UV_EXTRA_INDEX_URL": "https://download.pytorch.org/whl/cpu",
    "UV_INDEX_STRATEGY": "unsafe-best-match",
}
FIX = (
    "apt install python3-torch python3-torchvision libopenblas0-pthread; or --torch pypi, which needs 5 GB; "
    "or run imgrec, which needs no torch"
)
LARGE: dict[str, Mapping[str, Any]] = {"packages": {"max_package_mb": 4096, "install_deadline_s": 1200.0}}
"""Sections of a worker's settings."""


class TorchSource(Enum):
    """One of the three."""

    SYSTEM = "system"
    INDEX = "index"
    PYPI = "pypi"

    @classmethod
    def of(cls, name: str) -> TorchSource:
        """The one that is named; for "auto" Debian's where it is installed. Raises: NotPossible."""
        built_for_us = f"_C.cpython-{sys.version_info.major}{sys.version_info.minor}-*.so"
        is_installed = any((SYSTEM_PACKAGES / "torch").glob(built_for_us))
        if name == "auto":
            return cls.SYSTEM if is_installed else cls.INDEX
        if name == cls.SYSTEM.value and not is_installed:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise NotPossible(f"Debian's torch for Python {version} is not in {SYSTEM_PACKAGES}", fix=FIX)
        return cls(name)

    def requirements(self, lines: list[str]) -> list[str]:
        """What is asked of the package index where the suite asks for these."""
        match self:
            case TorchSource.SYSTEM:
                return []
            case TorchSource.INDEX:
                return lines
            case TorchSource.PYPI:
                return list(map(without_local, lines))

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the function."""
        return {"SEBS_SYSTEM_PACKAGES": str(SYSTEM_PACKAGES)} if self is TorchSource.SYSTEM else {}

    @property
    def worker_variables(self) -> dict[str, str]:
        return CPU_INDEX if self is TorchSource.INDEX else {}

    @property
    def worker_sections(self) -> dict[str, Mapping[str, Any]]:
        """The sections of the worker's settings."""
        return {} if self is TorchSource.SYSTEM else LARGE


def without_local(line: str) -> str:
    """A requirement for any build of its version: torch==2.0.0+cpu is one that PyPI does not have."""
    name, sign, version = line.partition("==")
    return name + sign + version.partition("+")[0]
