"""A container image as the root of sandboxes: its file system, mounted read-only, and what each sandbox has of its own over it.

    /                 the image: EROFS, read-only, nosuid, nodev
    /dev              five device nodes, and links into /proc
    /etc/resolv.conf  the host's; /etc/hosts: the host's, with the sandbox's name
    /etc/passwd       the image's, with the sandbox's user; /etc/group likewise

No other file of the host has a path in it. It is a detached tree, in no mount table, and a sandbox's root is a copy of it. The
image's links never lead a mount elsewhere: each mount point is opened without following any.

Where roots are attached (`sockd.isolation.roots.assembly`), the tree is attached as well: in a directory of the worker's
private mount namespace, and in a namespace of its own that roots are copies of.

Owns the descriptors of the tree and that directory. Each user holds it, and the last one to release it closes it: a version of a
function, and each sandbox until its last process has ended, as what serves the file system's blocks may end with its last user.

It is lost when what serves its blocks has ended: whatever is not in the page cache is EIO, or SIGBUS, for ever. Its watchers are
called at once: sandboxes that wait for requests, and the farm with its Zygotes, end then.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from sockd.base.errors import BadImage, ImageUnavailable
from sockd.isolation.roots import base as bases
from sockd.isolation.roots import owner_maps
from sockd.isolation.roots.owner_maps import Owner
from sockd.linux import mounts, syscalls
from sockd.linux.erofs.mounting import mount_image
from sockd.linux.mount_namespaces import MountNamespaces
from sockd.linux.syscalls import MountAttr

DIRECTORIES = ("dev", "proc", "tmp", bases.PACKAGES, bases.ZYGOTE, bases.STORAGE)
"""Mount points that an image must have (`sockd.linux.erofs.mount_points` adds them)."""
PLACES = (bases.CODE,)
"""Directories that it must have, perhaps by a link: a Zygote enters them, but nothing is mounted there."""
FILES = (bases.RESOLV_CONF, "etc/hosts", "etc/passwd", "etc/group")
FURNITURE = ("dev", *FILES)
"""Where a mount stands over the image."""
ROOT, NAMES = "root", "names"
"""Entries of a directory in which an image is attached: its mount, and what is copied into it."""
USER = "sandbox"
MOST_NAMES_BYTES = 1 << 20
"""The most bytes of an image's /etc/passwd and /etc/group; longer ones are replaced."""


class Attaching(NamedTuple):
    """How images are mounted where roots are attached."""

    stage: Path
    """A directory for their mounts."""
    namespaces: MountNamespaces


class ImageBase:
    """`mount`, `hold`, `let_go`. It is a `sockd.isolation.roots.root.Template`."""

    def __init__(
        self, tree: int, resolv_conf: int, owner: Owner = owner_maps.ROOT, private_resolv_conf: str = ""
    ) -> None:
        """Args:
        tree: its mount; resolv_conf: that of private networks, a mount; both are owned from now on.
        owner: whose files are a sandbox's own; private_resolv_conf: the file of that mount."""
        self.at = tree, ""
        self.owner = owner
        self.furniture = FURNITURE
        self.resolv_conf_fd = resolv_conf
        self.private_resolv_conf = private_resolv_conf
        self.namespace = -1
        """Where it is attached: a mount namespace that has it as its root."""
        self._place: Path | None = None
        self.holders = 0
        self.on_unused: Callable[[ImageBase], None] = ImageBase.close
        """Called when the last holder has let go."""
        self.lost: ImageUnavailable | None = None
        """Why it is read no more; `again` is what to raise."""
        self.watchers: set[Callable[[], None]] = set()
        """Called once, when it is lost."""
        self.settled: Callable[[], Awaitable[None]] = _settled
        """Waits until it is known whether it is lost: what served its blocks may have ended a moment ago."""

    @classmethod
    def mount(
        cls,
        source: str,
        base: bases.Base,
        owner: Owner = owner_maps.ROOT,
        attaching: Attaching | None = None,
        *,
        by_loop: bool = False,
    ) -> ImageBase:
        """Blocks, as it reads the image.

        Args:
            source: a path of the EROFS image; base: has what is the host's; owner: whose files are a sandbox's own.
            attaching: roots are attached; by_loop: as of `mount_image`.

        Args:
            source: a path of the EROFS image; base: has what is the host's.
            attaching: roots are attached; by_loop: as of `mount_image`.
        Raises: DamagedImage, SandboxFailed: the kernel refuses it; BadImage: it lacks a mount point; OSError naming the call."""
        tree = mount_image(source, by_loop=by_loop)
        try:
            if attaching is None:
                return cls._furnished(tree, base, owner)
            return cls._attached(tree, base, owner, attaching)
        except BaseException:
            os.close(tree)
            raise

    @classmethod
    def _attached(cls, tree: int, base: bases.Base, owner: Owner, attaching: Attaching) -> ImageBase:
        place = Path(tempfile.mkdtemp(dir=attaching.stage))
        with ExitStack() as undo:
            undo.callback(_remove, place)
            for name in (ROOT, NAMES):
                (place / name).mkdir()
            syscalls.move_mount(tree, syscalls.AT_FDCWD, str(place / ROOT))
            undo.callback(mounts.umount_tree, str(place / ROOT))
            image = cls._furnished(tree, base, owner, place / NAMES)
            undo.callback(os.close, image.resolv_conf_fd)
            image.namespace = attaching.namespaces.of_tree(str(place / ROOT))
            undo.pop_all()
        image._place = place
        return image

    @classmethod
    def _furnished(cls, tree: int, base: bases.Base, owner: Owner, stage: Path | None = None) -> ImageBase:
        """Args: stage: a directory for a mount that parts of which are copied: of a detached one they are from Linux 6.15 on."""
        for path in DIRECTORIES:
            os.close(open_point(tree, path, stat.S_ISDIR))
        _attach_copy_of(f"{base.path}/dev", tree, "dev", stat.S_ISDIR)
        for name in ("etc/hosts", bases.RESOLV_CONF):
            _attach_copy_of(f"{base.path}/{name}", tree, name, stat.S_ISREG)
        options: dict[str, str | int] = {"size": str(4 * MOST_NAMES_BYTES), "mode": "0755"}
        with mounts.owned(syscalls.new_filesystem("tmpfs", options, MountAttr.NOSUID | MountAttr.NODEV)) as names:
            for name, lines in (("passwd", bases.PASSWD), ("group", bases.GROUP)):
                _write(names, name, with_user(_read(tree, f"etc/{name}"), lines))
            syscalls.mount_setattr(names, mounts.SEALED, recursive=False)
            with _staged(names, stage):
                for name in ("passwd", "group"):
                    copy = syscalls.open_tree(names, name, recursive=False)
                    with mounts.owned(copy):
                        _attach(copy, tree, f"etc/{name}", stat.S_ISREG)
        return cls(tree, mounts.sealed_copy(base.private_resolv_conf), owner, base.private_resolv_conf)

    def hold(self) -> None:
        """Keep it until `let_go`."""
        self.holders += 1

    def let_go(self) -> None:
        """The opposite of `hold`."""
        self.holders -= 1
        if not self.holders:
            self.on_unused(self)

    def lose(self, error: ImageUnavailable) -> None:
        """Mark the mount as lost, and call all watchers. An error of a watcher does not stop the others; the last one is
        raised."""
        self.lost = error
        with ExitStack() as every:
            for watcher in self.watchers:
                every.callback(watcher)

    def check(self) -> None:
        """Raises: ImageUnavailable: it is lost."""
        if self.lost is not None:
            raise self.lost.again()

    async def why_lost(self) -> ImageUnavailable | None:
        """Return the loss of the mount if it is the cause of a failure in the image, else None."""
        await self.settled()
        return None if self.lost is None else self.lost.again()

    def close(self) -> None:
        """Close the descriptors; roots that are copies of it live on. Safe to call twice."""
        (tree, _), resolv_conf, namespace = self.at, self.resolv_conf_fd, self.namespace
        self.at, self.resolv_conf_fd, self.namespace = (-1, ""), -1, -1
        mounts.close_all((tree, resolv_conf, namespace))
        place, self._place = self._place, None
        if place is not None:
            mounts.umount_tree(str(place / ROOT))
            _remove(place)


@contextmanager
def _staged(mount: int, stage: Path | None) -> Iterator[None]:
    """Have a mount attached in a directory for a block, if there is one."""
    if stage is None:
        yield
        return
    syscalls.move_mount(mount, syscalls.AT_FDCWD, str(stage))
    try:
        yield
    finally:
        mounts.umount_tree(str(stage))


def _remove(place: Path) -> None:
    """Remove a directory in which an image was attached; what is still mounted there makes this fail."""
    for directory in (place / ROOT, place / NAMES, place):
        with suppress(FileNotFoundError):
            directory.rmdir()


async def _settled() -> None:
    return None


def with_user(text: bytes, lines: str) -> bytes:
    """An image's passwd or group, and the sandbox's user if its number is not in there. Args: lines: of the host's base."""
    own = next(line for line in lines.splitlines() if line.startswith(f"{USER}:"))
    number = own.split(":")[2].encode()
    if any(line.split(b":")[2:3] == [number] for line in text.splitlines()):
        return text
    if not text:
        return lines.encode()
    return text.rstrip(b"\n") + f"\n{own}\n".encode()


def open_point(tree: int, path: str, is_kind: Callable[[int], bool]) -> int:
    """A descriptor of a mount point, reached without following a link. Raises: BadImage: it is not there, or another kind."""
    parts = path.split("/")
    fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
    for depth, name in enumerate(parts, 1):
        with mounts.owned(fd):
            try:
                fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except (FileNotFoundError, NotADirectoryError):
                raise BadImage(f"the image has no mount point /{path}") from None
        mode = os.fstat(fd).st_mode
        if not (is_kind(mode) if depth == len(parts) else stat.S_ISDIR(mode)):
            os.close(fd)
            kind = "file" if is_kind is stat.S_ISREG else "directory"
            raise BadImage(f"/{'/'.join(parts[:depth])} cannot be a mount point in the image: it is no {kind}")
    return fd


def _attach_copy_of(source: str, tree: int, path: str, is_kind: Callable[[int], bool]) -> None:
    """A sealed copy of the mount of a path of the host, but with the devices that it has."""
    copy = syscalls.open_tree(syscalls.AT_FDCWD, source, recursive=False)
    with mounts.owned(copy):
        syscalls.mount_setattr(copy, MountAttr.RDONLY | MountAttr.NOSUID, recursive=False)
        _attach(copy, tree, path, is_kind)


def _attach(mount: int, tree: int, path: str, is_kind: Callable[[int], bool]) -> None:
    with mounts.owned(open_point(tree, path, is_kind)) as point:
        syscalls.move_mount(mount, point, "")


def _read(tree: int, path: str) -> bytes:
    """The content of a file of the image; empty if it is too long."""
    with mounts.owned(open_point(tree, path, stat.S_ISREG)) as point, open(f"/proc/self/fd/{point}", "rb") as file:
        text = file.read(MOST_NAMES_BYTES + 1)
    return text if len(text) <= MOST_NAMES_BYTES else b""


def _write(directory: int, name: str, text: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(name, flags, 0o644, dir_fd=directory), "wb") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o644)
