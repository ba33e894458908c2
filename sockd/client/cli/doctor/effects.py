"""The effects of a worker on the host outside its processes and state directory, for `sockd doctor`. Changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import sockd_initscripts
import sockd_storage_lib
from sockd.base.config import SandboxConfig
from sockd.base.uids import confined
from sockd.client.cli.doctor.checks import Check
from sockd.linux.latency import favordynmods


def effects() -> list[Check]:
    """One finding per effect: its state, whether it is reversible, and its switch."""
    return [cgroup_moves(), real_time_threads(), uids(), cgroups(), links(), bytecode()]


def cgroup_moves() -> Check:
    """The only effect that outlives a worker and that no command reverts."""
    state = "on now" if favordynmods.is_shown() else "off; `sockd up` sets it if cgroup moves wait"
    return _effect("favordynmods", f"{state}; all cgroups of the host", "a reboot", 'latency.favordynmods = "off"')


def real_time_threads() -> Check:
    count = len(os.sched_getaffinity(0))
    found = (
        f"{count} threads with SCHED_FIFO 1, awake for 2 us every 0.5 ms while functions compute and others are called"
    )
    return _effect("real-time threads", found, "the worker's end", 'latency.hrtick = "off"')


def uids() -> Check:
    (block,) = confined(SandboxConfig().base_uid)
    return _effect("uids", f"{block[0]} to {block[-1]} are the worker's", "the worker's end", "sandbox.base_uid")


def cgroups() -> Check:
    found = "a cgroup sockd-ID in each hierarchy, with eBPF programs at bind(2) and socket(2) of the processes in it"
    return _effect("cgroups", found, "the worker's end", "none")


def links() -> Check:
    found = "with private networks, a link sdID and a table sockd-ID of nf_tables in the host's network namespace"
    return _effect("links", found, "the worker's end", "network.private = false; network.ip_forward is never undone")


def bytecode() -> Check:
    """Bytecode of our packages, which sandboxes and the engine import from read-only trees."""
    places = [str(Path(str(package.__file__)).parent) for package in (sockd_initscripts, sockd_storage_lib)]
    written = [place for place in places if os.access(place, os.W_OK)]
    found = f"__pycache__ below {', '.join(written)}" if written else "none: the packages are read-only"
    return _effect("bytecode", found, "deleting __pycache__", "install read-only")


def _effect(name: str, found: str, ends: str, switch: str) -> Check:
    return Check(f"effect: {name}", True, f"{found}; undone by {ends}; switch: {switch}")
