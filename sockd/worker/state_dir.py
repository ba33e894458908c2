"""The state directory: where everything that outlives a daemon is kept, and the lock that lets one daemon in.

registry.sqlite   events.sqlite   secret.key   keys.json   keys.made   learned.json   history.json
code/   store/   initscripts/   logs/   destinations/                 kept
store/packages/   store/uv-cache/
worker.log        what a detached worker logs, and the one before
reserve           space for removals when the disk is full (`sockd.worker.space_reserve`)
lock              the pid of the daemon that has it, held by flock(2): gone with its process, however that ends
tmp/   base/   engine/   pythons/   sockd.sock   run.sock   handover.sock   worthless after a daemon: emptied at start

Other users may only pass through it (0711), to run.sock, and members of `management.group` to sockd.sock (0660); every other
entry is closed to them (0700, 0600). What sandboxes read
(a function's code, store/packages) is readable itself, below a closed directory: they reach it through mounts.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from sockd.base.errors import BadConfig

RUN_SOCKET, SOCKET = "run.sock", "sockd.sock"
HISTORY = "history.json"
REGISTRY = "registry.sqlite"
DIRECTORIES = ("tmp", "code", "store", "base", "engine", "initscripts", "logs", "resolver", "pythons")
"""Made at each start, closed, so that no later step makes one that is open."""


class StateDir:
    """Owns the lock. `close` releases it."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: Path) -> StateDir:
        """Make the directory if need be, take the lock, and empty what an earlier daemon left half done.

        Raises: BadConfig with the pid of the daemon that has it; OSError."""
        path.mkdir(parents=True, exist_ok=True, mode=0o711)
        path = path.resolve()
        lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.read(lock_fd, 32).decode(errors="replace").strip()
                raise BadConfig(f"{path} is in use by the sockd with pid {pid}; stop it, or use --state-dir") from None
            os.ftruncate(lock_fd, 0)
            os.write(lock_fd, b"%d\n" % os.getpid())
            shutil.rmtree(path / "tmp", ignore_errors=True)
            for name in DIRECTORIES:
                (path / name).mkdir(exist_ok=True, mode=0o700)
            _move_packages(path)
            close_to_others(path)
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, lock_fd)

    @property
    def id(self) -> str:
        """Eight hex digits that tell this directory's cgroups from those of others."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]

    @property
    def packages(self) -> Path:
        """The package store. It is bound into the base, and sandboxes must enter it: a closed directory is above it."""
        return self.path / "store" / "packages"

    @property
    def socket(self) -> Path:
        """The management socket."""
        return self.path / SOCKET

    @property
    def run_socket(self) -> Path:
        """The socket over which every user of this host calls functions, and knows that root answers."""
        return self.path / RUN_SOCKET

    def close(self) -> None:
        """Release the lock; safe to call twice."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)


def close_to_others(path: Path) -> None:
    """Close a state directory, whichever sockd made it, and each entry of it. Raises: OSError."""
    for entry in open_to_others(path):
        entry.chmod(_closed_mode(entry))
    path.chmod(0o711)


def open_to_others(path: Path) -> list[Path]:
    """The entries of a state directory that other users can read, change or enter. Raises: OSError."""
    entries = [path / name for name in sorted(os.listdir(path)) if name != RUN_SOCKET]
    return [entry for entry in entries if not entry.is_symlink() and entry.stat().st_mode & _closed_bits(entry)]


def _closed_bits(entry: Path) -> int:
    # The management socket's group is root, or management.group.
    return 0o007 if entry.name == SOCKET and entry.is_socket() else 0o077


def _closed_mode(entry: Path) -> int:
    return 0o700 if entry.is_dir() else 0o600


def _move_packages(path: Path) -> None:
    """Take over the packages of a sockd that kept them at the top."""
    for name in ("packages", "uv-cache"):
        if (path / "store" / name).exists():
            shutil.rmtree(path / name, ignore_errors=True)  # an older sockd was here once more; what it lacked is there
        with contextlib.suppress(FileNotFoundError):
            os.rename(path / name, path / "store" / name)
