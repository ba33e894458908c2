"""Processes and threads of one function, divided among its sandboxes."""

from __future__ import annotations

from pathlib import Path

from sockd.linux.processes.task_shares import LEAST, TaskShare, host_tasks


def test_the_first_sandboxes_have_what_they_ask_for_and_none_is_refused() -> None:
    share = TaskShare(8192)
    grants = [share.take(1024) for _ in range(100)]
    sizes = [grant.tasks for grant in grants]
    assert sizes[:5] == [1024] * 5 and sizes == sorted(sizes, reverse=True)
    assert sizes[9] > 2 * LEAST and sizes[-1] == LEAST
    assert sum(size for size in sizes if size > LEAST) <= 8192


def test_a_sandbox_has_no_more_than_its_settings_say() -> None:
    assert [TaskShare(8192).take(wanted).tasks for wanted in (16, 64, 4096)] == [16, 64, 2048]


def test_what_is_given_back_is_granted_again_and_once() -> None:
    share = TaskShare(1000)
    grants = [share.take(250) for _ in range(20)]
    for grant in (*grants, *grants):
        grant.close()
    assert share.granted == 0 and share.take(250).tasks == 250


def test_the_least_limit_of_the_host_counts(tmp_path: Path) -> None:
    (tmp_path / "pids.max").write_text("max\n")
    whole = host_tasks([tmp_path / "pids.max", tmp_path / "missing"])
    assert whole <= int(Path("/proc/sys/kernel/pid_max").read_text())
    (tmp_path / "pids.max").write_text("77\n")
    assert host_tasks([tmp_path / "pids.max"]) == 77
