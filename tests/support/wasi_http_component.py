"""The component for wasi:http of `wasi_http`, built once."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CRATE = Path(__file__).with_name("wasi_http")
TARGET = "wasm32-wasip2"


@functools.cache
def component() -> bytes:
    """Return its bytes. The test is skipped where cargo, its target or its crates are missing."""
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo")
    with tempfile.TemporaryDirectory() as directory:
        command = ["cargo", "build", "--release", "--locked", "--quiet", "--target", TARGET, "--target-dir", directory]
        done = subprocess.run(command, cwd=CRATE, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"the component cannot be built: {done.stderr[-300:]}")
        return Path(directory, TARGET, "release", "wasi_http_component.wasm").read_bytes()
