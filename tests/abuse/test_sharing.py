"""What sandboxes and Zygotes have in common by accident: open file descriptions, and states of files that all may read."""

from __future__ import annotations

import ctypes
import os
from itertools import combinations
from typing import Any

from tests.abuse.attack import WORTH_A_ZYGOTE, attack, in_zygote
from tests.abuse.prelude import outcome
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

SYS_KCMP, KCMP_FILE = 312, 0
_syscall = ctypes.CDLL(None, use_errno=True).syscall


def is_one_description(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two descriptors, each a pid and a number, are of one open file description (kcmp(2))."""
    return bool(_syscall(SYS_KCMP, first[0], second[0], KCMP_FILE, first[1], second[1]) == 0)


def descriptors(pid: int) -> list[tuple[int, int]]:
    try:
        return [(pid, int(name)) for name in os.listdir(f"/proc/{pid}/fd")]
    except FileNotFoundError:
        return []


@case(
    "K9",
    "compare all descriptors of sandboxes, Zygotes and the daemon; O_NONBLOCK and O_ASYNC on 0 to 3 of one sandbox",
    expect="no two share an open file description; the flags of others are as they were",
)
def test_no_open_file_description_is_shared(worker: PrivateWorker, happened: Happened) -> None:
    worker.index.add(wheel("open-files", "1.0", {"open_files.py": WORTH_A_ZYGOTE}))
    code = (
        "import fcntl\n"
        "def f(event):\n"
        "    for fd in range(4) if event else ():\n"
        "        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | event)\n"
        "    return [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in range(4)]\n"
    )
    worker.deploy("teaches", "import open_files\n" + code, requirements=["open-files"])
    worker.call("teaches")
    worker.daemon.when(lambda: worker.daemon.node("open-files==1.0"))
    networks = {"spare": "host", "bare": "none", "forked": "host", "sibling": "host"}
    for name, network in networks.items():
        with_package = name in ("forked", "sibling")
        text = "import open_files\n" + code if with_package else code
        worker.deploy(name, text, requirements=["open-files"] if with_package else [], network=network)
    before = {name: worker.call(name, 0) for name in networks}
    assert all(worker.call_learned(name, 0) == before[name] for name in ("forked", "sibling"))
    assert worker.call("spare", os.O_NONBLOCK | os.O_ASYNC) != before["spare"]
    others = [name for name in networks if name != "spare"]
    after = {name: worker.call(name, 0) for name in others}
    worker.deploy("later", code)
    later = worker.call("later", 0)

    groups = [descriptors(each.pid) for each in worker.processes("sandbox", "zygote") if each.inner_pid]
    outer = [worker.daemon.pid, *(each.pid for each in worker.processes("launcher", "init", "root zygote"))]
    groups += [descriptors(pid) for pid in outer]
    shared = [
        (one, two)
        for first, second in combinations(groups, 2)
        if first and second and (first[0][0] not in outer or second[0][0] not in outer)
        for one in first
        for two in second
        if is_one_description(one, two)
    ]
    happened(
        f"{sum(map(len, groups))} descriptors of {len(groups)} processes: {len(shared)} shared {shared[:3]}; flags elsewhere"
        f" {'as before' if after == {name: before[name] for name in others} else 'changed'}"
    )
    assert shared == []
    assert after == {name: before[name] for name in others} and later == before["bare"] == before["spare"]


@case(
    "K9",
    "",
    expect="EPERM: no lease delays whoever opens a file, no dnotify tells of it",
)
def test_leases_and_directory_notifications_are_refused(worker: PrivateWorker, happened: Happened) -> None:
    def lease(event: Any) -> Any:
        import fcntl

        shared, own = os.open("/usr/bin/env", os.O_RDONLY), os.open("/tmp" if os.getpid() == 1 else "/", os.O_RDONLY)
        return {
            "lease": outcome(lambda: fcntl.fcntl(shared, 1024, fcntl.F_RDLCK)),
            "notify of /usr": outcome(lambda: fcntl.fcntl(os.open("/usr", os.O_RDONLY), 1026, 0x20)),
            "notify": outcome(lambda: fcntl.fcntl(own, 1026, 0x20)),
        }

    for subject, tried in (("handler", attack(worker, lease)), ("Zygote", in_zygote(worker, lease))):
        happened(f"{subject}: {tried}")
        assert set(tried.values()) == {"EPERM"}, tried
