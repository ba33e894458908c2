"""Blocks of uids: the range that a Zygote's user namespace maps, divided among its sandboxes and child Zygotes.

A block belongs to one Zygote. The first half of its first quarter are the uids of its own sandboxes, one each; the other half is
cut into runs for templates, which have no child Zygotes; the rest is cut into equal blocks for child Zygotes, unless these would
be too small: then all are for sandboxes. Numbers are as that Zygote
sees them, because a uid_map is written in terms of the parent namespace (user_namespaces(7)): from SANDBOX_UID in a user
namespace of its own, but the host's for the root Zygote.
"""

from __future__ import annotations

from sockd.base.errors import NoCapacity
from sockd.base.uids import CHILD_ZYGOTES, KEPT_FOR_ROOTS

SANDBOX_UID = 1000
"""The uid of each handler, and of each Zygote with packages, inside its user namespace (zygote/native/native.h)."""
LEAST = 32
"""Uids of the smallest block."""
TEMPLATE_RUNS = (1024, 256)
"""Uids of one template, itself among them: the larger run where there is room for MANY of them."""
MANY = 64
ALL_IN_USE = "every block of uids for child Zygotes is in use, by Zygotes and by sandboxes of Zygotes that have ended"


class UidBlock:
    """`count` uids that start at `first` in the parent's numbering, at `absolute` in the host's, at `zero` in its own."""

    def __init__(self, first: int, absolute: int, count: int, *, zero: int) -> None:
        self.first = first
        self.absolute = absolute
        self.count = count
        self._zero = zero
        size = (count - count // 4) // CHILD_ZYGOTES
        self._child_size = size if size >= LEAST else 0
        self._own = count - self._child_size * CHILD_ZYGOTES
        """Where the blocks of child Zygotes begin."""
        room = self._own // 2 if self._child_size else 0
        self._run_size = next((size for size in TEMPLATE_RUNS if room >= MANY * size), TEMPLATE_RUNS[-1])
        self._runs = room // self._run_size
        self._own_uids = self._own - self._runs * self._run_size
        """Where the runs of templates begin."""
        self._next_run = 0
        self._free_runs: list[int] = []
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
        return bool(self._free_uids) or self._next_uid < self._own_uids

    @property
    def has_child(self) -> bool:
        """Whether `take_child` has a block for a Zygote that is no root."""
        return bool(self._child_size) and self._children_left > KEPT_FOR_ROOTS

    @property
    def has_run(self) -> bool:
        """Whether `take_run` has one."""
        return bool(self._free_runs) or self._next_run < self._runs

    @property
    def _children_left(self) -> int:
        return CHILD_ZYGOTES - self._next_child + len(self._free_children)

    def take_uid(self) -> int:
        """A uid for one sandbox, in the Zygote's numbering. Raises: NoCapacity when all are in use."""
        if self._free_uids:
            return self._free_uids.pop()
        if self._next_uid >= self._own_uids:
            raise NoCapacity("every uid of this Zygote is in use by a sandbox")
        self._next_uid += 1
        return self._zero + self._next_uid - 1

    def give_back_uid(self, uid: int) -> None:
        """The sandbox's last process is gone: its uid may be another's."""
        self._free_uids.append(uid)

    def on_host(self, uid: int) -> int:
        """A sandbox's uid in the host's numbering."""
        return self.absolute + uid - self._zero

    def take_child(self, *, is_root: bool = False) -> UidBlock:
        """A block for one child Zygote.

        Args: is_root: it imports nothing and others are forked from it, so that it may have one of the blocks that are kept.
        Raises: NoCapacity when the block cannot be divided again, or all are in use."""
        if not self._child_size:
            raise NoCapacity("the Zygote tree is too deep for its block of uids")
        if self._children_left <= (0 if is_root else KEPT_FOR_ROOTS):
            raise NoCapacity(ALL_IN_USE)
        if self._free_children:
            index = self._free_children.pop()
        else:
            index = self._next_child
            self._next_child += 1
        offset = self._own + index * self._child_size
        return UidBlock(self._zero + offset, self.absolute + offset, self._child_size, zero=SANDBOX_UID)

    def take_run(self) -> UidBlock:
        """A block for one template, whose sandboxes have all of it. Raises: NoCapacity when all are in use, or there is none."""
        if not self.has_run:
            raise NoCapacity(
                "every run of uids for templates of this Zygote is in use, or its block is too small for any"
            )
        if self._free_runs:
            index = self._free_runs.pop()
        else:
            index = self._next_run
            self._next_run += 1
        offset = self._own_uids + index * self._run_size
        return UidBlock(self._zero + offset, self.absolute + offset, self._run_size, zero=SANDBOX_UID)

    def give_back_child(self, block: UidBlock) -> None:
        """The child Zygote or template and all its sandboxes are gone."""
        offset = block.absolute - self.absolute
        if offset < self._own:
            self._free_runs.append((offset - self._own_uids) // block.count)
            return
        self._free_children.append((block.absolute - self.absolute - self._own) // block.count)
