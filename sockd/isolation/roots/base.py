"""The base: the read-only tree that every process of the farm sees, holding nothing of the host but its software.

Owns one directory, mounted in the daemon's private mount namespace. By default it is the host's own /usr and /lib*, and
the prefix of the interpreter that runs sockd; /etc is a handful of copies, /dev five nodes. Each bind is a mount without
children, so that cloning the tree costs the same at any size of the host's mount table (measured: 7.5 µs).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sockd.isolation.roots.owner_maps import Owner
from sockd.linux import mounts, syscalls
from sockd.linux.network.resolv_conf import PRIVATE_NAMESERVER
from sockd.linux.syscalls import MountFlag

ETC_COPIES = (
    "alternatives",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)
"""What software in /usr looks for under /etc: linker cache, resolver, CA certificates. No secret is among them."""
HOSTNAME = "sandbox"
"""The host name of each sandbox."""
PASSWD = "root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/tmp:/bin/sh\n"
GROUP = "root:x:0:\nsandbox:x:1000:\n"
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
LINKS = {
    "dev/fd": "/proc/self/fd",
    "dev/stdin": "/proc/self/fd/0",
    "dev/stdout": "/proc/self/fd/1",
    "dev/stderr": "/proc/self/fd/2",
    "dev/shm": "/tmp",  # POSIX shared memory and semaphores: private, and limited with /tmp
    "var/tmp": "/tmp",
    "host/tmp": "/tmp",  # where OpenLambda's functions have theirs
    "etc/mtab": "/proc/self/mounts",
}
DIRECTORIES = ("dev", "etc", "host", "opt/sockd/sockd_zygote", "packages", "proc", "run", "tmp", "var/task")
"""/var/task: the function's code; /packages: the install cache; /opt/sockd: the Zygote's own code, and the storage
library that functions may ask for."""
RESOLV_CONF, PRIVATE_RESOLV_CONF = "etc/resolv.conf", "etc/resolv.private.conf"
"""The host's, and what takes its place in sandboxes with a private network."""
CODE, PACKAGES, TMP, PROC, ZYGOTE = "var/task", "packages", "tmp", "proc", "opt/sockd/sockd_zygote"
STORAGE = "opt/sockd/storage_lib"
NATIVE = "_native.abi3.so"
"""The Zygote's C extension, in ZYGOTE."""


@dataclass(frozen=True, slots=True)
class Bind:
    """One directory of the host and where it appears in the base."""

    source: str
    target: str


def interpreter() -> str:
    """The interpreter that sandboxes run: the one behind sockd's own virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def software(prefix: str = "") -> tuple[Bind, ...]:
    """The host's own software and an interpreter, outermost first. Pure but for looking at which directories exist.

    Args: prefix: of the interpreter; empty: of the worker's own."""
    binds = [Bind("/usr", "usr")]
    for name in ("lib", "lib32", "lib64", "libx32", "bin", "sbin"):
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
            binds.append(Bind(f"/{name}", name))
    prefix = os.path.realpath(prefix or sys.base_prefix)
    if not Path(prefix).is_relative_to("/usr"):
        binds.append(Bind(prefix, prefix.lstrip("/")))
    return tuple(binds)


def our_packages() -> tuple[Path, Path]:
    """Where the Zygote's code and the storage library are on the host."""
    zygote = Path(__file__).resolve().parents[3] / "sockd_zygote"
    return zygote, zygote.parent / "sockd_storage_lib"


def plan(packages: Path, prefix: str = "", ours: tuple[Path, Path] | None = None) -> tuple[Bind, ...]:
    """The binds of a base.

    Args: prefix: as of `software`; ours: our packages, with bytecode for that interpreter."""
    zygote, storage = ours or our_packages()
    return (*software(prefix), Bind(str(packages), PACKAGES), Bind(str(zygote), ZYGOTE), Bind(str(storage), STORAGE))


class Tree(Protocol):
    """What a farm stands on, and sandboxes have copies of: a base, or an image."""

    at: tuple[int, str]
    """As of `sockd.isolation.roots.root.Template`."""

    @property
    def owner(self) -> Owner | None:
        """The user whose files are a sandbox's own; None if there is none, because the files are the host's software."""

    @property
    def path(self) -> Path:
        """Where it is mounted."""

    @property
    def resolv_conf_fd(self) -> int:
        """A sealed, detached mount of `private_resolv_conf`, not the caller's. Raises: OSError."""

    @property
    def private_resolv_conf(self) -> str:
        """A file to be mounted at RESOLV_CONF of a sandbox with a private network."""

    def close(self) -> None:
        """Unmount it; processes that are in it keep it."""


class Base:
    """The mounted base at `path`. `close` unmounts it; so does the end of the daemon's mount namespace."""

    owner = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = syscalls.AT_FDCWD, str(path)
        self._resolv_conf_fd = -1

    @property
    def resolv_conf_fd(self) -> int:
        """The sealed, detached mount of `private_resolv_conf`, made when it is first needed. Raises: OSError."""
        if self._resolv_conf_fd < 0:
            self._resolv_conf_fd = mounts.sealed_copy(self.private_resolv_conf)
        return self._resolv_conf_fd

    @property
    def private_resolv_conf(self) -> str:
        """A file to be mounted at RESOLV_CONF of a sandbox with a private network."""
        return str(self.path / PRIVATE_RESOLV_CONF)

    @classmethod
    def build(cls, path: Path, binds: Sequence[Bind]) -> Base:
        """Mount the base at `path`, in this process's mount namespace, which must be private.

        Raises: OSError naming the call; what was mounted until then is unmounted."""
        # The host sees this mode; in this namespace the tmpfs covers it, with its own.
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mounts.mount_tmpfs(str(path), size_bytes=64 << 20)
        base = cls(path)
        try:
            populate(path)
            for bind in binds:
                (path / bind.target).mkdir(parents=True, exist_ok=True)
                mounts.bind_sealed(bind.source, str(path / bind.target))
            mounts.replace_by_sealed(str(path))
        except BaseException:
            base.close()
            raise
        return base

    def close(self) -> None:
        """Unmount the base with all that is below it; processes that are in it keep it. Fine if somebody else has."""
        fd, self._resolv_conf_fd = self._resolv_conf_fd, -1
        if fd >= 0:
            os.close(fd)
        try:
            mounts.umount_tree(str(self.path))
        except OSError as error:
            if error.errno != errno.EINVAL:  # not a mount point
                raise


def populate(root: Path) -> None:
    """Directories, links, files and device nodes that are the base's own."""
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("lib", "lib32", "lib64", "libx32", "bin", "sbin"):
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
    populate_etc(root / "etc")
    mounts.mount_tmpfs(str(root / "dev"), size_bytes=64 << 10, flags=MountFlag.NOSUID | MountFlag.NOEXEC)
    for name, (major, minor) in DEVICES.items():
        node = root / "dev" / name
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        node.chmod(0o666)
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
    mounts.seal(str(root / "dev"))


def populate_etc(etc: Path) -> None:
    """Copies of the public files that software expects, and a passwd with the sandbox's one user."""
    for name in ETC_COPIES:
        source, target = Path("/etc") / name, etc / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            copy_tree(str(source), str(target))
        elif source.exists():
            copy_readable(str(source), str(target))
    (etc / "resolv.conf").touch()  # a mount of another file needs it
    (etc / "resolv.private.conf").write_text(f"nameserver {PRIVATE_NAMESERVER}\n")
    with (etc / "hosts").open("a") as hosts:
        hosts.write(f"\n127.0.0.1 {HOSTNAME}\n")  # programs look their own host up
    (etc / "passwd").write_text(PASSWD)
    (etc / "group").write_text(GROUP)


def copy_tree(source: str, target: str) -> None:
    """Copy a directory with its links and readable files; `target` may exist. Of directories, permissions are copied as well.

    A host has hundreds of links to certificates. `shutil.copytree` also copies times and extended attributes of each link."""
    os.makedirs(target, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            copy = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), copy)
            elif entry.is_dir():
                copy_tree(entry.path, copy)
            else:
                copy_readable(entry.path, copy)
    shutil.copymode(source, target)


def copy_readable(source: str, target: str) -> None:
    """Copy one file when everybody may read it on the host, too; what is root's alone there stays there."""
    if os.stat(source).st_mode & stat.S_IROTH:
        shutil.copy(source, target)
