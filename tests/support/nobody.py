"""The user nobody, for what an ordinary user gets."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@functools.cache
def _can_run_python() -> bool:
    """Some interpreters are in a home directory of root's."""
    return subprocess.run([*NOBODY, sys.executable, "-c", ""], capture_output=True, check=False).returncode == 0


needs_nobody = pytest.mark.skipif(
    os.geteuid() != 0 or not _can_run_python(), reason="needs root, and a Python that nobody may run"
)
