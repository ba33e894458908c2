"""The state directory: where everything that outlives a daemon is kept, and the lock that lets one daemon in.

registry.sqlite   events.sqlite   destinations/   secret.key   code/   packages/   uv-cache/   initscripts/   learned.json   kept
lock              the pid of the daemon that has it, held by flock(2): gone with its process, however that ends
tmp/   base/   roots/   engine/   sockd.sock                         worthless after a daemon: emptied at start
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from sockd.errors import BadConfig


class StateDir:
    """Owns the lock. `close` releases it."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: Path) -> StateDir:
        """Make the directory if need be, take the lock, and empty what an earlier daemon left half done.

        Raises: BadConfig with the pid of the daemon that has it; OSError."""
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
        path = path.resolve()
        lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.read(lock_fd, 32).decode(errors="replace").strip()
                raise BadConfig(f"{path} is in use by the sockd with pid {pid}; stop it, or use --state-dir") from None
            os.ftruncate(lock_fd, 0)
            os.write(lock_fd, b"%d\n" % os.getpid())
            shutil.rmtree(path / "tmp", ignore_errors=True)
            for name in ("tmp", "code", "packages"):
                (path / name).mkdir(exist_ok=True)
            (path / "tmp").chmod(0o700)
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, lock_fd)

    @property
    def id(self) -> str:
        """Eight hex digits that tell this directory's cgroups from those of others."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]

    @property
    def socket(self) -> Path:
        """The management socket."""
        return self.path / "sockd.sock"

    def close(self) -> None:
        """Release the lock; safe to call twice."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)
