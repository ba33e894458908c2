"""The launcher: how confined processes get rid of all that they do not need. Exec'd as root.

    python -m sockd.linux.confined.launcher <Confinement as JSON>

The launcher joins the cgroup, makes the namespaces and pivot_roots onto a tree that holds nothing of the host; its one
child, pid 1 of a pid namespace, mounts its /proc, becomes its uid, drops every capability, takes the filter and execs
the command. Both die with the daemon. Standard input and output are as the daemon gave them; of the other descriptors
those that are named are kept, and no more. The exit status is the command's, as a shell would tell it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import sys
from typing import Any

from sockd.linux import syscalls
from sockd.linux.processes import launching
from sockd.linux.syscalls import MountFlag
from sockd_zygote import linux

PROC_OPTIONS = "hidepid=invisible,subset=pid"
"""Nothing but the process itself: no other's files, no /proc/sys, no kernel symbols (proc(5))."""


def main(text: str) -> int:
    """Confine and run; returns the exit status."""
    confinement = json.loads(text)
    launching.die_with_parent()
    if os.getppid() != confinement["daemon"]:
        return 127  # it ended before we asked for the signal
    launching.enter(
        confinement["root"],
        scratch_fd=confinement["scratch"],
        procs_fds=confinement["procs"],
        more_namespaces=0 if confinement["network"] == "host" else syscalls.CLONE_NEWNET,
    )
    ours = os.pidfd_open(os.getpid())
    child = os.fork()  # noqa: TID251  SAFETY: this process is single-threaded and was exec'd for this
    if child == 0:
        try:
            become(confinement, ours)
        except BaseException as error:
            os.write(2, f"the process could not be confined: {error}\n".encode())
        finally:
            os._exit(127)
    for fd in confinement["keep"]:
        os.close(fd)
    linux.drop_bounding_set()
    # What is left to do is to wait, and to be killed. The kernel sends the child its signal of a parent's death in our name, and
    # only if we may signal it: so we take its uid, of which it can make no use from its pid namespace.
    become_user(confinement["uid"])
    launching.die_with_parent()
    if os.getppid() != confinement["daemon"]:
        return 127
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def become(confinement: dict[str, Any], launcher: int) -> None:
    """Everything between fork and exec. Returns only by raising. Args: launcher: its pidfd."""
    flags = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC
    syscalls.mount("proc", "/proc", "proc", flags, PROC_OPTIONS)
    # A core pattern that starts with `|` ignores 0 and honours 1 (core(5)), and no dump is that small. A hard limit of 0 that
    # the daemon could not raise either stays.
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    for name, most in confinement["limits"].items():
        limit(getattr(resource, name), most)
    with contextlib.suppress(OSError):
        # The engine's threads wake each other for a few microseconds' work, while threads that compute have slices of 3 to 4 ms.
        syscalls.set_time_slice(syscalls.SHORTEST_SLICE_NS, inherited=True)
    linux.drop_bounding_set()
    linux.lock_securebits()
    become_user(confinement["uid"])
    launching.die_with_parent()
    ended = select.poll()
    ended.register(launcher, select.POLLIN)
    if ended.poll(0):
        raise ProcessLookupError("its launcher has ended")
    syscalls.close_on_exec_from(3)
    for fd in confinement["keep"]:
        os.set_inheritable(fd, True)
    linux.set_no_new_privs()
    linux.install_filter(bytes.fromhex(confinement["filter"]))
    command = confinement["command"]
    os.execve(command[0], command, confinement["env"])


def become_user(uid: int) -> None:
    """Without groups and capabilities, for good. It clears the signal of the parent's death."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.keep_capabilities()


def limit(which: int, most: int) -> None:
    """A resource limit for good, no higher than what we are held to ourselves."""
    hard = resource.getrlimit(which)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
