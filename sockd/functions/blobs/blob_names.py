"""The names of blobs: what a file is, and the digest or key that it is known by. Pure."""

from __future__ import annotations

from sockd.functions.registry.function_record import FunctionRecord

CODE, INITSCRIPT, IMAGE, WHEEL = "code/", "initscript/", "image/", "wheel/"
"""A deployed archive, by the digest of the code; a module, by its digest; the record of an image, by the image's digest; a wheel
that was built from source, by the digest of its source and environment."""


def needed(record: FunctionRecord) -> list[str]:
    """Return the blobs that a deploy does not run without. (A wheel can be built again.)"""
    names = [CODE + record.digest]
    if record.initscript:
        names.append(INITSCRIPT + record.initscript)
    if record.image:
        names.append(IMAGE + record.image)
    return names
