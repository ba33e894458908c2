"""Id maps by which the files of one user of an image are a sandbox's own.

In a container, a program runs as the image's USER, else as root, and has that user's files, also those that no other user may
reach, such as a home directory of mode 0700. A sandbox's process has a uid of its own on the host and no capability. So its
mount of the image is mapped (MOUNT_ATTR_IDMAP): files of that user and group are shown as the sandbox's, others as they are.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import NamedTuple

from sockd.linux import user_namespaces

END_OF_IDS = 0xFFFFFFFF
"""The first number that is no id."""
MOST_MAPS = 64
"""Kept for the next sandbox with the same uid; uids are given out again last in, first out."""


class Owner(NamedTuple):
    """The user and group of an image whose files are the sandbox's own."""

    uid: int
    gid: int


ROOT = Owner(0, 0)


class OwnerMaps:
    """Owns a user namespace for each of the last uids."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[tuple[int, Owner], int] = OrderedDict()

    def of(self, uid: int, owner: Owner) -> int:
        """The namespace that shows an owner's files as those of a uid, and gid, of the host; ours.

        Raises: OSError naming the call."""
        key = uid, owner
        if key not in self._namespaces:
            self._namespaces[key] = user_namespaces.new(owner_is(owner.uid, uid), owner_is(owner.gid, uid))
            if len(self._namespaces) > MOST_MAPS:
                os.close(self._namespaces.popitem(last=False)[1])
        self._namespaces.move_to_end(key)
        return self._namespaces[key]

    def close(self) -> None:
        """Mounts keep their maps. Safe to call twice."""
        while self._namespaces:
            os.close(self._namespaces.popitem()[1])


def owner_is(owner: int, own: int) -> list[user_namespaces.Extent]:
    """The map of an owner's id to a sandbox's and of all others to themselves; what an image says belongs to the sandbox's id has
    no owner. Pure."""
    first, second = sorted((owner, own))
    gaps = (0, first), (first + 1, second), (second + 1, END_OF_IDS)
    return [(owner, own, 1), *((start, start, end - start) for start, end in gaps if start < end)]
