"""How a host's cgroup layout is read: recorded mountinfo of each kind of host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sockd.linux.cgroups.hierarchies import Controller, Hierarchies, delegated_base, parse_mounts

V1_AND_EMPTY_V2 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
OLD_SYSTEMD = """\
25 30 0:23 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
27 25 0:25 / /sys/fs/cgroup/systemd rw,nosuid,nodev,noexec,relatime shared:11 - cgroup cgroup rw,xattr,name=systemd
31 25 0:29 / /sys/fs/cgroup/memory rw,nosuid,nodev,noexec,relatime shared:15 - cgroup cgroup rw,memory
32 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:16 - cgroup cgroup rw,cpu,cpuacct
33 25 0:31 / /sys/fs/cgroup/freezer rw,nosuid,nodev,noexec,relatime shared:17 - cgroup cgroup rw,freezer
34 25 0:32 / /sys/fs/cgroup/pids rw,nosuid,nodev,noexec,relatime shared:18 - cgroup cgroup rw,pids
"""
PURE_V2 = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
28 22 0:24 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
"""


def test_v1_controllers_next_to_an_empty_v2_tree_are_hybrid() -> None:
    found = Hierarchies.from_mounts(parse_mounts(V1_AND_EMPTY_V2), unified="/sys/fs/cgroup/unified", on_v2=["hugetlb"])
    assert found.kind == "hybrid"
    assert found.memory == Controller("/sys/fs/cgroup/memory", 1)
    assert found.missing == ()
    assert found.bases[0] == "/sys/fs/cgroup/unified"  # Who joins in this order can be killed from the first step on.
    assert set(found.bases[1:]) == {f"/sys/fs/cgroup/{name}" for name in ("memory", "cpu", "pids")}


def test_without_a_v2_tree_the_freezer_is_needed_too() -> None:
    mounts = parse_mounts(OLD_SYSTEMD)
    found = Hierarchies.from_mounts(mounts)
    assert found.kind == "v1"
    assert found.cpu == Controller("/sys/fs/cgroup/cpu,cpuacct", 1)
    assert "/sys/fs/cgroup/freezer" in found.bases
    assert Hierarchies.from_mounts(m for m in mounts if "freezer" not in m.options).missing == ("freezer",)


def test_pure_v2_is_one_directory() -> None:
    mounts = parse_mounts(PURE_V2)
    found = Hierarchies.from_mounts(mounts, unified=mounts[0].path, on_v2=["cpuset", "cpu", "io", "memory", "pids"])
    assert found.kind == "v2"
    assert found.bases == ("/sys/fs/cgroup",)
    assert mounts[0].options == ("rw", "nsdelegate", "memory_recursiveprot")


def test_a_controller_that_no_one_offers_is_named() -> None:
    assert Hierarchies.from_mounts((), unified="/sys/fs/cgroup", on_v2=["cpu"]).missing == ("memory", "pids")


def test_a_controller_on_v1_is_not_taken_from_v2() -> None:
    found = Hierarchies.from_mounts(parse_mounts(V1_AND_EMPTY_V2), unified="/u", on_v2=["pids", "memory"])
    assert found.pids == Controller("/sys/fs/cgroup/pids", 1)


def test_mount_points_are_unescaped() -> None:
    line = "1 2 0:3 / /with\\040space\\134 rw - cgroup2 none rw\n"
    assert parse_mounts(line)[0].path == "/with space\\"


@pytest.mark.parametrize("own", ["0::/\n", "1:cpu:/\n", "0::/../elsewhere\n", "0::/no/such/cgroup\n"])
def test_without_delegation_the_root_of_the_tree_is_used(tmp_path: Path, own: str) -> None:
    assert delegated_base(str(tmp_path), own) == str(tmp_path)


def test_this_host_is_usable() -> None:
    found = Hierarchies.detect()
    assert found.missing == ()
    assert all(Path(base, "cgroup.procs").exists() for base in found.bases)


@pytest.mark.parametrize(
    ("version", "files", "cpus"),
    [
        (2, {"cpu.max": "150000 100000\n"}, 1.5),
        (2, {"cpu.max": "max 100000\n"}, 4),
        (2, {}, 4),
        (2, {"cpu.max": "900000 100000\n"}, 4),
        (1, {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}, 0.5),
        (1, {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, 4),
    ],
)
def test_no_more_processors_are_usable_than_affinity_and_quota_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: Any, files: dict[str, str], cpus: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5})
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert Hierarchies(None, Controller(str(tmp_path), version), None, None, None).usable_cpus() == cpus
