"""Builds zygote/native with something more in it, for workers that are broken on purpose."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

NAME = "_native.abi3.so"


def build_native(
    zygote: Path,
    *,
    options: Sequence[str] = (),
    more: Sequence[Path] = (),
    include: Path | None = None,
    into: Sequence[str] = (),
) -> None:
    """Compile a copy of zygote/ anew, in place.

    Args:
        zygote: the copy; options: for the compiler; more: further C files;
        include: a header that comes before everything in the files named `into`."""
    flags = ["-shared", "-fPIC", "-O1", f"-I{sysconfig.get_path('include')}", f"-I{zygote / 'native'}", *options]
    objects = []
    for file in (*sorted((zygote / "native").glob("*.c")), *more):
        before = ["-include", str(include)] if include and file.name in into else []
        objects.append(str(zygote / f"{file.stem}.o"))
        subprocess.run(["cc", "-c", *flags[1:], *before, str(file), "-o", objects[-1]], check=True)
    subprocess.run(["cc", "-shared", "-o", str(zygote / NAME), *objects], check=True)
    for each in objects:
        Path(each).unlink()
