"""The C sources: each compiler and architecture that sockd is built with takes them without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("zygote/native/*.c"), *ROOT.glob("sockd/linux/native/*.c")])
ZIG = (sys.executable, "-m", "ziglang", "cc", "-target")
COMPILERS = {
    "cc": ("cc",),
    "clang for x86_64": (*ZIG, "x86_64-linux-gnu"),
    "clang for aarch64": (*ZIG, "aarch64-linux-gnu"),
}
FLAGS = ("-c", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread", "-U_FORTIFY_SOURCE")


def includes(architecture: str) -> Path:
    """Python's headers. Raises: Skipped: they are of the host's architecture alone, as Debian's."""
    directory = Path(sysconfig.get_path("include"))
    is_of_one = f"{architecture}-linux-gnu/python" in (directory / "pyconfig.h").read_text()
    if is_of_one and architecture != os.uname().machine:
        pytest.skip(f"Debian's headers for {architecture} are a package of that architecture")
    return directory


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_sources_compile_without_a_warning(compiler: str, tmp_path: Path) -> None:
    assert len(SOURCES) > 15
    architecture = "aarch64" if "aarch64" in compiler else os.uname().machine
    command = [*COMPILERS[compiler], *FLAGS, f"-I{includes(architecture)}"]
    wrong = {}
    for source in SOURCES:
        done = subprocess.run(
            [*command, str(source), "-o", str(tmp_path / "object")], capture_output=True, text=True, check=False
        )
        if done.returncode:
            wrong[source.name] = done.stderr
    assert not wrong, "\n".join(wrong.values())
