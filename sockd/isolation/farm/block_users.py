"""The users of a Zygote's block of uids: the Zygote itself, its sandboxes, and the child Zygotes that have a part of it.

Owns what the sandboxes need of their Zygote after its end. Sandboxes outlive their Zygote, so its block goes back to the parent's
only when the last of them has returned its uid.
"""

from __future__ import annotations

from collections.abc import Callable

from sockd.isolation.farm.uids import UidBlock


class BlockUsers:
    """Counts the users of a block. The first is the Zygote itself, which ends with `release`."""

    def __init__(self, block: UidBlock, parent: BlockUsers | None, on_unused: Callable[[], None]) -> None:
        """Args: parent: the users of the block that this one was taken from, of which it is one; on_unused: called once, when the
        last user has gone."""
        self._block = block
        self._parent = parent
        self._on_unused = on_unused
        self._count = 1
        self._kept: list[Callable[[], None]] = []
        if parent is not None:
            parent._count += 1

    def add_sandbox(self) -> int:
        """A uid of the block for one sandbox; `remove_sandbox` when its last process is gone. Raises: NoCapacity."""
        uid = self._block.take_uid()
        self._count += 1
        return uid

    def remove_sandbox(self, uid: int) -> None:
        """Give back the uid of a sandbox that is gone."""
        self._block.give_back_uid(uid)
        self.release()

    def keep_tree(self, release: Callable[[], None]) -> None:
        """Keep the tree that the Zygote's imports ran in until its last sandbox is gone: in /proc/PID/maps the files that they
        mapped have paths through its mounts, which are taken apart with it.

        Args: release: lets go of it."""
        self._kept.append(release)
        if not self._count:
            self._release_kept()

    def release(self) -> None:
        """Note that one user is gone."""
        self._count -= 1
        if self._count:
            return
        self._release_kept()
        if self._parent is not None:
            self._parent._block.give_back_child(self._block)
            self._parent.release()
        self._on_unused()

    def _release_kept(self) -> None:
        while self._kept:
            self._kept.pop()()
