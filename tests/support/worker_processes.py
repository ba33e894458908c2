"""The processes of a worker as /proc tells of them, from outside: what each is, who it is, what it may do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process of the worker, from /proc."""

    pid: int
    kind: str
    """"launcher", "init", "root zygote", "zygote", "sandbox" (all of it: pid 1 and its children) or "engine"."""
    status: Mapping[str, str]
    """/proc/<pid>/status"""
    user_namespace: str

    @property
    def uid(self) -> int:
        return int(self.status["Uid"].split()[1])

    @property
    def inner_pid(self) -> int:
        return int(self.status["NSpid"].split()[-1])

    @property
    def capabilities(self) -> dict[str, int]:
        """Inh, Prm, Eff, Bnd, Amb as bit sets."""
        return {name[3:]: int(value, 16) for name, value in self.status.items() if name.startswith("Cap")}


INITIAL_USER_NAMESPACE = os.readlink("/proc/self/ns/user")


def look_at(pid: int) -> Process | None:
    """A process as it is now; None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        namespace = os.readlink(f"/proc/{pid}/ns/user")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:  # also of a process that was reaped meanwhile (proc_ns_readlink)
        if Path(f"/proc/{pid}").exists():
            raise
        return None
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    depth = len(status["NSpid"].split())
    if b"sockd_initscripts" in words:
        kind = "engine"
    elif depth == 1:
        kind = "launcher"
    elif depth == 2:
        root = "root zygote" if namespace == INITIAL_USER_NAMESPACE else "zygote"
        kind = "init" if status["NSpid"].split()[-1] == "1" else root
    else:
        kind = "sandbox"
    return Process(pid, kind, status, namespace)
