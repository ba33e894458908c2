"""Where the objects of a chunk store are.

roots                                       the table of roots
manifests/<root>/<tenant>/<image>           sealed; written after its chunks
profiles/<root>/<tenant>/<image>            what the image's start reads
references/<worker>/<root>/<tenant>/<image> empty: this worker uses the image from this root
alarms/<root>/<worker>                      this worker has read a root that was expired
blobs/<space>/<generation>/<number>         files of functions (`sockd.functions.blobs`)
collector                                   the lease of the garbage collector
"""

from __future__ import annotations

import re
from typing import NamedTuple

REFERENCES, MANIFESTS, PROFILES, ALARMS = "references/", "manifests/", "profiles/", "alarms/"
LEASE = "collector"
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._:=-]{0,199}")


class Image(NamedTuple):
    """An image of one tenant."""

    tenant: str
    name: str
    """What identifies its bytes."""

    @property
    def path(self) -> str:
        return f"{self.tenant}/{self.name}"


class Reference(NamedTuple):
    """One worker uses one image from one root."""

    worker: str
    root: str
    image: Image

    @property
    def key(self) -> str:
        return f"{REFERENCES}{self.worker}/{self.root}/{self.image.path}"

    @classmethod
    def parse(cls, key: str) -> Reference:
        """Raises ValueError."""
        worker, root, tenant, name = key.removeprefix(REFERENCES).split("/")
        return cls(worker, root, Image(tenant, name))


def manifest_key(root: str, image: Image) -> str:
    return f"{MANIFESTS}{root}/{image.path}"


def profile_key(root: str, image: Image) -> str:
    return f"{PROFILES}{root}/{image.path}"


def alarm_key(root: str, worker: str) -> str:
    return f"{ALARMS}{root}/{worker}"


def check_part(text: str, what: str) -> str:
    """Raises ValueError unless it may be one part of a key."""
    if not _PART.fullmatch(text):
        raise ValueError(f"not {what}: {text!r}")
    return text
