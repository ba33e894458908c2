"""Blocks of uids: the range that a Zygote's user namespace maps, divided among its sandboxes and child Zygotes.

A block belongs to one Zygote. Its first half are the uids of its own sandboxes, one each; its second half is cut into
equal blocks for child Zygotes. Numbers are as that Zygote sees them, because a uid_map is written in terms of the parent
namespace (user_namespaces(7)): from SANDBOX_UID in a user namespace of its own, but the host's for the root Zygote.
"""

from __future__ import annotations

from sockd.plain.errors import NoCapacity

SANDBOX_UID = 1000
"""Of each handler, and of each Zygote with packages, inside its user namespace (zygote/native/native.h)."""
CHILDREN = 64
"""Most child Zygotes of one Zygote at a time."""
LEAST = 64
"""Uids of the smallest block."""


class UidBlock:
    """`count` uids that start at `first` in the parent's numbering, at `absolute` in the host's, at `zero` in its own."""

    def __init__(self, first: int, absolute: int, count: int, *, zero: int) -> None:
        self.first = first
        self.absolute = absolute
        self.count = count
        self._zero = zero
        self._next_uid = 1  # the first of the block is the Zygote itself
        self._free_uids: list[int] = []
        self._next_child = 0
        self._free_children: list[int] = []

    @classmethod
    def of_host(cls, base_uid: int, count: int) -> UidBlock:
        """The root Zygote's, who lives in the initial user namespace."""
        return cls(base_uid, base_uid, count, zero=base_uid)

    @property
    def has_uid(self) -> bool:
        """Whether `take_uid` has one."""
        return bool(self._free_uids) or self._next_uid < self.count // 2

    @property
    def has_child(self) -> bool:
        """Whether `take_child` has a block."""
        enough = self.count // 2 // CHILDREN >= LEAST
        return enough and (bool(self._free_children) or self._next_child < CHILDREN)

    def take_uid(self) -> int:
        """A uid for one sandbox, in the Zygote's numbering. Raises: NoCapacity when all are in use."""
        if self._free_uids:
            return self._free_uids.pop()
        if self._next_uid >= self.count // 2:
            raise NoCapacity("every uid of this Zygote is in use by a sandbox")
        self._next_uid += 1
        return self._zero + self._next_uid - 1

    def give_back_uid(self, uid: int) -> None:
        """The sandbox's last process is gone: its uid may be another's."""
        self._free_uids.append(uid)

    def on_host(self, uid: int) -> int:
        """A sandbox's uid in the host's numbering."""
        return self.absolute + uid - self._zero

    def take_child(self) -> UidBlock:
        """A block for one child Zygote. Raises: NoCapacity when the block cannot be divided again."""
        size = self.count // 2 // CHILDREN
        if size < LEAST:
            raise NoCapacity("the Zygote tree is too deep for its block of uids")
        if self._free_children:
            index = self._free_children.pop()
        elif self._next_child < CHILDREN:
            index = self._next_child
            self._next_child += 1
        else:
            raise NoCapacity("every block for child Zygotes is in use")
        offset = self.count // 2 + index * size
        return UidBlock(self._zero + offset, self.absolute + offset, size, zero=SANDBOX_UID)

    def give_back_child(self, block: UidBlock) -> None:
        """The child Zygote and all its sandboxes are gone."""
        self._free_children.append((block.absolute - self.absolute - self.count // 2) // block.count)
