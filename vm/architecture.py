"""Architecture: the processors whose kernels are booted here, and what each is called where."""

from __future__ import annotations

from typing import NamedTuple


class Architecture(NamedTuple):
    """One of them."""

    name: str
    """As uname(1) prints it."""
    debian: str
    """As Debian's packages have it."""


X86_64 = Architecture("x86_64", "amd64")
AARCH64 = Architecture("aarch64", "arm64")
