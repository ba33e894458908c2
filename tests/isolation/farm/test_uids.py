"""Blocks of uids: nobody's uid is anybody else's at the same time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from sockd.base.errors import NoCapacity
from sockd.base.uids import CHILD_ZYGOTES, KEPT_FOR_ROOTS, MOST_ZYGOTES
from sockd.isolation.farm.uids import SANDBOX_UID, UidBlock

BASE = 0x10000000


def spread(block: UidBlock) -> range:
    """The host's uids in a block."""
    return range(block.absolute, block.absolute + block.count)


class Tree(RuleBasedStateMachine):
    """Zygotes that come and go with their sandboxes; uids are compared as the host sees them."""

    blocks: Bundle[UidBlock] = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[UidBlock, UidBlock | None] = {}
        self.uids: dict[UidBlock, set[int]] = {}

    @initialize(target=blocks, count=st.sampled_from([1 << 30, 1 << 16, 1 << 14]))
    def root(self, count: int) -> UidBlock:
        block = UidBlock.of_host(BASE, count)
        self.parents[block], self.uids[block] = None, set()
        return block

    def zero(self, block: UidBlock) -> int:
        """What must be added to a uid as the block's Zygote sees it, to be the host's."""
        return 0 if self.parents[block] is None else block.absolute - SANDBOX_UID

    @rule(target=blocks, parent=blocks, is_root=st.booleans())
    def spawn(self, parent: UidBlock, is_root: bool) -> UidBlock:
        if parent not in self.parents:
            return multiple()  # type: ignore[return-value]
        children = [block for block, owner in self.parents.items() if owner is parent]
        try:
            child = parent.take_child(is_root=is_root)
        except NoCapacity:
            is_small = (parent.count - parent.count // 4) // CHILD_ZYGOTES < 32
            assert is_small or len(children) >= CHILD_ZYGOTES - (0 if is_root else KEPT_FOR_ROOTS)
            return multiple()  # type: ignore[return-value]
        assert child.first + self.zero(parent) == child.absolute
        self.parents[child], self.uids[child] = parent, set()
        return child

    @rule(target=blocks, parent=blocks)
    def spawn_template(self, parent: UidBlock) -> UidBlock:
        if parent not in self.parents or not parent.has_run:
            return multiple()  # type: ignore[return-value]
        child = parent.take_run()
        assert child.first + self.zero(parent) == child.absolute and not child.has_child and not child.has_run
        self.parents[child], self.uids[child] = parent, set()
        return child

    @rule(block=blocks)
    def take_uid(self, block: UidBlock) -> None:
        if block in self.parents:
            uid = block.take_uid() + self.zero(block)
            assert uid not in self.uids[block]
            self.uids[block].add(uid)

    @rule(block=blocks, pick=st.integers(0, 1000))
    def give_back_uid(self, block: UidBlock, pick: int) -> None:
        if block in self.parents and self.uids[block]:
            uid = sorted(self.uids[block])[pick % len(self.uids[block])]
            self.uids[block].remove(uid)
            block.give_back_uid(uid - self.zero(block))

    @rule(block=blocks)
    def end(self, block: UidBlock) -> None:
        parent = self.parents.get(block)
        if parent is None or self.uids[block] or block in self.parents.values():
            return
        del self.parents[block], self.uids[block]
        parent.give_back_child(block)

    @invariant()
    def no_uid_is_two_processes(self) -> None:
        zygotes = [block.absolute for block, parent in self.parents.items() if parent is not None]
        everybody = zygotes + [uid for uids in self.uids.values() for uid in uids]
        assert len(everybody) == len(set(everybody))

    @invariant()
    def blocks_are_within_their_parents_and_apart_from_each_other(self) -> None:
        for block, parent in self.parents.items():
            assert all(uid in spread(block) for uid in self.uids[block])
            if parent is None:
                continue
            assert block.absolute in spread(parent) and spread(block)[-1] in spread(parent)
            assert not any(uid in spread(block) for uid in self.uids[parent])
            for other, owner in self.parents.items():
                if owner is parent and other is not block:
                    assert spread(block).stop <= spread(other).start or spread(other).stop <= spread(block).start


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_all_uids_of_a_block_can_be_had_and_no_more() -> None:
    block = UidBlock.of_host(BASE, 1 << 15)
    uids = [block.take_uid() for _ in range((1 << 12) - 1)]
    assert len(set(uids)) == len(uids) and BASE not in uids
    with pytest.raises(NoCapacity):
        block.take_uid()
    block.give_back_uid(uids[5])
    assert block.take_uid() == uids[5]


def test_a_tree_has_three_levels_of_thousands_of_uids_and_one_of_hundreds() -> None:
    block = UidBlock.of_host(BASE, 1 << 30)
    for _ in range(2):
        block = block.take_child()
        assert block.count // 4 >= 1 << 13
    block = block.take_child()
    assert block.count >= 200


def test_a_block_says_beforehand_what_it_has_left() -> None:
    block = UidBlock.of_host(BASE, 1 << 30)
    depth = 0
    while block.has_child:
        block, depth = block.take_child(), depth + 1
    assert depth == 3
    with pytest.raises(NoCapacity):
        block.take_child()
    while block.has_uid:
        uid = block.take_uid()
    with pytest.raises(NoCapacity):
        block.take_uid()
    block.give_back_uid(uid)
    assert block.has_uid
    wide = UidBlock.of_host(BASE, 1 << 30)
    children = [wide.take_child() for _ in range(CHILD_ZYGOTES - KEPT_FOR_ROOTS)]
    assert not wide.has_child
    wide.give_back_child(children[0])
    assert wide.has_child


def test_templates_have_a_thousand_uids_each_where_there_is_room_and_hundreds_below() -> None:
    block = UidBlock.of_host(BASE, 1 << 30)
    for depth, (uids, least) in enumerate([(1024, 700), (1024, 700), (256, 16)]):
        run = block.take_run()
        assert len([run.take_uid() for _ in range(uids - 1)]) == uids - 1 and not run.has_uid
        block.give_back_child(run)
        runs = [block.take_run() for _ in range(least)]
        assert len({each.absolute for each in runs}) == least, depth
        block = block.take_child()
    assert not block.has_run
    with pytest.raises(NoCapacity, match="templates"):
        block.take_run()


def test_a_root_gets_a_block_when_other_children_have_theirs() -> None:
    block = UidBlock.of_host(BASE, 1 << 30)
    children = [block.take_child() for _ in range(CHILD_ZYGOTES - KEPT_FOR_ROOTS)]
    assert len(children) >= MOST_ZYGOTES
    with pytest.raises(NoCapacity, match="every block of uids"):
        block.take_child()
    roots = [block.take_child(is_root=True) for _ in range(KEPT_FOR_ROOTS)]
    assert len({each.absolute for each in (*children, *roots)}) == CHILD_ZYGOTES
    with pytest.raises(NoCapacity, match="every block of uids"):
        block.take_child(is_root=True)
    block.give_back_child(roots[0])
    with pytest.raises(NoCapacity):
        block.take_child()
    assert block.take_child(is_root=True).absolute == roots[0].absolute
