"""Cgroups whose sockets are judged and counted, and processes in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sockd.linux.cgroups.tree import Cgroup, CgroupTree
from tests.linux.socket_guards.inside import MOST, Inside


@pytest.fixture
def tree(v2_tree: CgroupTree) -> CgroupTree:
    v2_tree.guard_ports()
    v2_tree.count_sockets(MOST)
    return v2_tree


@pytest.fixture
def leaf(tree: CgroupTree) -> Iterator[Callable[[str], Cgroup]]:
    made: list[Cgroup] = []

    def make(name: str) -> Cgroup:
        made.append(tree.cgroup(name))
        made[-1].sockets.limit(10 * MOST)
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def cgroup(leaf: Callable[[str], Cgroup]) -> Cgroup:
    return leaf("one")


@pytest.fixture
def inside(leaf: object) -> Iterator[Callable[[Cgroup], Inside]]:
    started: list[Inside] = []

    def start(cgroup: Cgroup) -> Inside:
        started.append(Inside(cgroup))
        return started[-1]

    yield start
    for each in started:
        each.close()
