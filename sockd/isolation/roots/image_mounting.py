"""How a worker mounts images on its kernel: from files or through loop devices, detached or attached in a directory.

Owns that directory and the way into mount namespaces; what is mounted is its `ImageBase`'s.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sockd.isolation.roots.attached_images import why_no_writable
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.image_base import Attaching, ImageBase
from sockd.isolation.roots.owner_maps import ROOT, Owner
from sockd.isolation.roots.writable_root import why_no_writable_roots
from sockd.linux.erofs.mounting import LOOP, find_way
from sockd.linux.mount_namespaces import MountNamespaces
from sockd.linux.ways import DETACHED, Found, Release, Ways


class ImageMounting:
    """`open`, or as on the newest kernels. `try_in` before the first `mount`; `close` at the end."""

    def __init__(self, attaching: Attaching | None = None, kernel: Release | None = None) -> None:
        self._attaching = attaching
        self._kernel = kernel
        self.way: Found | None = None
        """How images are mounted; None: it was not tried, or they are not."""
        self._directory: Path | None = None
        """Where they are, once it is known that they can be mounted."""

    @classmethod
    def open(cls, ways: Ways, stage: Path, kernel: Release | None = None) -> ImageMounting:
        """Args: stage: a directory of the worker's own, where images may be attached; kernel: as of `Ways.find`.

        Raises: OSError."""
        if ways.roots.name == DETACHED:
            return cls(kernel=kernel)
        shutil.rmtree(stage, ignore_errors=True)  # of a worker that was killed: its mounts ended with it
        stage.mkdir(mode=0o700, parents=True)
        return cls(Attaching(stage, MountNamespaces.open()), kernel)

    def try_in(self, directory: Path) -> str:
        """Find out how images in a directory are mounted. Blocks. Returns: why they are not; empty: they are."""
        self.way, why_not = find_way(directory, self._kernel)
        self._directory = None if why_not else directory
        return why_not

    def mount(self, source: str, base: Base, owner: Owner = ROOT) -> ImageBase:
        """As `ImageBase.mount`."""
        return ImageBase.mount(source, base, owner, self._attaching, by_loop=self._by_loop)

    def why_no_writable_roots(self) -> str:
        """Why sandboxes cannot change their image's files; empty: they can. Blocks briefly."""
        if self._attaching is None:
            return why_no_writable_roots()
        if self._directory is None:
            return "images cannot be mounted"
        return why_no_writable(self._directory, self._attaching, by_loop=self._by_loop)

    @property
    def _by_loop(self) -> bool:
        return self.way is not None and self.way.name == LOOP

    def close(self) -> None:
        """Safe to call twice."""
        if self._attaching is not None:
            self._attaching.namespaces.close()
