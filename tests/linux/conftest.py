"""What tests of the kernel's parts share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from sockd.linux.cgroups.tree import CgroupTree, Hierarchies


@pytest.fixture
def v2_tree() -> Iterator[CgroupTree]:
    """A tree of cgroups, among them of version 2, which judge sockets."""
    tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
    try:
        if tree.hierarchies.unified is None:
            pytest.skip("there is no v2 hierarchy")
        yield tree
    finally:
        tree.close()
        tree.destroy_all(5)
