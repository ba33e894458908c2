"""A Zygote's process as the host sees it, and a function to fork from it."""

from __future__ import annotations

from sockd.isolation.farm.zygote import Zygote
from sockd.linux.processes import pidfds
from tests.support.harness import namespaces_of

HANDLER = "def handler(event): return event\n"


def pid_of(zygote: Zygote) -> int:
    """Its process, as the host sees it."""
    if zygote.pidfd >= 0:
        return pidfds.pid(zygote.pidfd)
    assert zygote.cgroup is not None  # a root, which has none: farm init exec'd it
    ours = namespaces_of("self")["user"]  # its children have others, and may not have left for their own cgroups yet
    (pid,) = (pid for pid in zygote.cgroup.pids() if namespaces_of(pid)["user"] == ours)
    return pid
