"""Published code as a zip file again, which extracts to the same tree: for workers that do not have it.

Owns nothing. What users pack goes through `packing`, which selects.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import BinaryIO

from sockd.base.zip_directory import UNIX
from sockd.functions.code.archive import BYTECODE
from sockd.functions.code.packing import PACKED_TIME


def write_archive(directory: Path, file: BinaryIO) -> None:
    """Write all of published code but its bytecode to a file. Blocks. Raises: OSError."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(directory.rglob("*")):
            relative = path.relative_to(directory)
            if BYTECODE in relative.parts:
                continue
            info = zipfile.ZipInfo(f"{relative}/" if path.is_dir() else str(relative), PACKED_TIME)
            info.create_system, info.external_attr = UNIX, path.stat().st_mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            if path.is_dir():
                archive.writestr(info, b"")
                continue
            with archive.open(info, "w") as packed, open(path, "rb") as source:
                shutil.copyfileobj(source, packed)
