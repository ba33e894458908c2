"""Where the files are that come with sockd and are no modules of it: benchmarks, fault-injection suite, docs, systemd unit.

In a checkout they are next to the package, in an installed wheel in `sockd/source_tree` (setup.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import sockd
from sockd.base import extras

_PACKAGE = Path(sockd.__file__).resolve().parent
_INSTALLED = _PACKAGE / "source_tree"


def source_tree() -> Path:
    """The directory with `benchmarks`, `demo`, `docs`, `systemd` and `tests`."""
    return _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent


def lacking(libraries: Sequence[str]) -> str:
    """Return the libraries that cannot be imported, in words; empty if there are none."""
    return ", ".join(name for name in libraries if find_spec(name) is None)


def installing(extra: str) -> str:
    """The command that installs an extra of pyproject.toml."""
    if source_tree() == _INSTALLED:
        return extras.installing(extra)
    return f"pip install -e '.[{extra}]'  # in {source_tree()}"


def environment() -> dict[str, str]:
    """This process's environment, in which Python finds the modules of the source tree."""
    path = os.pathsep.join(filter(None, [str(source_tree()), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
