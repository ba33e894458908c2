"""What the init of a template has left in /tmp: each start from the template has it under its own /tmp, an overlay (overlayfs).

    tmpfs of the sandbox   upper  changed and new files, and marks of removed ones
                           work   overlayfs's own
    /tmp                   upper over what the init has left, whose files are the sandbox's own, nosuid, nodev

Nothing is copied until a start writes to it. The layer is in the memory of the template; the tmpfs has the limits of the
function's /tmp. Neither upper nor work has a path in the sandbox, as in a writable root.
"""

from __future__ import annotations

import os

from sockd.isolation.roots import base
from sockd.isolation.roots.owner_maps import Owner, OwnerMaps
from sockd.isolation.roots.program import Limits
from sockd.isolation.roots.writable_root import UPPER, new_changes, overlay
from sockd.linux import mounts, syscalls

OPEN_TO_ALL = 0o1777


class TmpLayer:
    """Owns a detached mount of what is there; `close` it. Sandboxes keep it until they end."""

    def __init__(self, root_fd: int, uid: int) -> None:
        """Args: root_fd: the root that the init ran in, the caller's; uid: of the process that wrote there, on the host.

        Raises: OSError."""
        self._fd = syscalls.open_tree(root_fd, base.TMP, recursive=False)
        self._owner = Owner(uid, uid)

    def under(self, limits: Limits, uid: int, maps: OwnerMaps) -> tuple[int, list[int]]:
        """Make the /tmp of a sandbox. Args: uid: the sandbox's, on the host.

        Returns: a detached overlay, and the mounts that it was made from, which it needs no more; the caller's.
        Raises: OSError naming the call; then nothing stays behind."""
        options = {"size": str(limits.tmp_bytes), "nr_inodes": str(limits.tmp_inodes)}
        spent = [mounts.mapped_copy(self._fd, maps.of(uid, self._owner))]
        try:
            spent.append(new_changes(uid, options))
            os.chown(UPPER, 0, 0, dir_fd=spent[1])  # as a /tmp without a layer
            os.chmod(UPPER, OPEN_TO_ALL, dir_fd=spent[1])
            return overlay(*spent), spent
        except BaseException:
            mounts.close_all(spent)
            raise

    def close(self) -> None:
        """Let go of it. Safe to call twice."""
        fd, self._fd = self._fd, -1
        mounts.close_all([fd])
