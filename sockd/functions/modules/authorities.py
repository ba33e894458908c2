"""The file of a function's own certificate authorities, which its variable AWS_CA_BUNDLE names as the AWS SDKs have it.

The path is one of the sandbox. Only files that are the same outside of it are opened: those of the function's code, and the
host's software. Knows nothing of certificates: the engine of initscripts reads them.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Mapping
from pathlib import Path

from sockd.isolation.roots.base import CODE
from sockd.linux.regular_file import opened

VARIABLE = "AWS_CA_BUNDLE"
NONE = -1
"""The function names no file."""
_SHARED = ("/etc/ssl/certs/", "/usr/")
"""What sandboxes see of the host (`sockd.isolation.roots.base`)."""


def open_authorities(env: Mapping[str, str], code: Path | None) -> int:
    """A descriptor of the file, the caller's; or NONE. A file that cannot be read is an empty one: with it no peer is trusted, as
    the function itself trusts none then.

    Args: code: the function's files; None: they are in an image, and so is what the variable names."""
    named = env.get(VARIABLE)
    if not named:
        return NONE
    path = _outside(named, code)
    with contextlib.suppress(OSError):
        if path is not None:
            return opened(path)
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _outside(named: str, code: Path | None) -> Path | None:
    """Where the daemon finds what is at a path in the function's sandbox; None: nowhere."""
    if code is None:
        return None
    at = posixpath.normpath(posixpath.join("/", CODE, named))
    if at.startswith(f"/{CODE}/"):
        return code / at.removeprefix(f"/{CODE}/")
    return Path(at) if at.startswith(_SHARED) else None
