"""How much memory a process may have, as the kernel says it in a cgroup of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from sockd.linux.cgroups.own_memory import memory_bytes
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from tests.daemon.running import REPO

MB = 1 << 20
ASK = """
import os, sys
for path in sys.argv[1:]:
    with open(path, "w") as procs:
        procs.write("0")
from sockd.linux.cgroups.own_memory import memory_bytes
print(memory_bytes())
"""


def test_without_a_limit_it_is_at_most_the_hosts() -> None:
    assert 64 * MB < memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.root
def test_the_limit_of_a_cgroup_counts() -> None:
    tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
    try:
        cgroup = tree.cgroup("limited")
        cgroup.limits.set_memory(200 * MB)
        paths = [os.path.join(top, "limited", "cgroup.procs") for top in tree.directories]
        said = subprocess.run([sys.executable, "-c", ASK, *paths], cwd=REPO, capture_output=True, text=True, check=True)
        assert int(said.stdout) == 200 * MB
        cgroup.close()
    finally:
        tree.destroy_all(5)
