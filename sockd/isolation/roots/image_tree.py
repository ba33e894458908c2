"""What the farm of an image's Python stands on: the image, and our packages at the places that every image has for them.

Owns a directory with a mount, in the daemon's private mount namespace, and copies of our packages; holds the image.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from sockd.isolation.roots import base as bases
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.owner_maps import Owner
from sockd.linux import mounts, syscalls


class ImageTree:
    """A `sockd.isolation.roots.base.Tree`. Made by `attach`; `close` it."""

    def __init__(self, path: Path, image: ImageBase, host: bases.Base) -> None:
        self.path = path
        self.at = syscalls.AT_FDCWD, str(path)
        self.image = image
        self._host = host

    @classmethod
    def attach(cls, directory: Path, image: ImageBase, host: bases.Base, ours: tuple[Path, Path]) -> ImageTree:
        """Args: directory: for this tree alone, removed with it; image: held from now on; host: has what is the host's; ours: our
        packages in that directory, as the image's Python reads them. Raises: OSError naming the call; then nothing is mounted."""
        path = directory / "root"
        path.mkdir()
        with mounts.owned(syscalls.open_tree(*image.at, recursive=True)) as copy:
            syscalls.move_mount(copy, syscalls.AT_FDCWD, str(path))
        image.hold()
        tree = cls(path, image, host)
        try:
            for source, target in zip(ours, (bases.ZYGOTE, bases.STORAGE), strict=True):
                mounts.bind_sealed(str(source), str(path / target))  # no link is in the way: `ImageBase.mount`
        except BaseException:
            tree.close()
            raise
        return tree

    @property
    def owner(self) -> Owner:
        return self.image.owner

    @property
    def resolv_conf_fd(self) -> int:
        return self.image.resolv_conf_fd

    @property
    def private_resolv_conf(self) -> str:
        return self._host.private_resolv_conf

    def close(self) -> None:
        """Unmount it and let go of the image; processes that are in it keep their mounts."""
        try:
            mounts.umount_tree(str(self.path))
        except OSError as error:
            if error.errno != errno.EINVAL:  # not a mount point
                raise
        finally:
            self.image.let_go()
        shutil.rmtree(self.path.parent)
