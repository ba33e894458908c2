"""Zip files as no zip program makes them: any name, any mode."""

from __future__ import annotations

import io
import stat
import zipfile

FILE = stat.S_IFREG | 0o644


def raw_zip(*entries: tuple[str, bytes, int]) -> bytes:
    """A zip whose entries have these names and st_modes, whatever they are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, mode in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename, info.create_system, info.external_attr = name, 3, mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return buffer.getvalue()
