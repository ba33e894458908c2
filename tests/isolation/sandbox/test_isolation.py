"""What a handler sandbox is: who, in which namespaces, with which rights; read back from inside and from the host.

The handlers here are sources: each runs in a sandbox, so it imports what it needs itself.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Harness, namespaces_of, status_of

pytestmark = [pytest.mark.root, pytest.mark.parametrize("whole_harness", ["detached", "attached"], indirect=True)]

CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
OWN_NAMESPACES = ("pid", "user", "ipc", "uts")


def read_status(event: Any) -> Any:
    with open("/proc/self/status") as file:
        lines = file.read().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_it_has_no_capability_and_can_get_none(harness: Harness) -> None:
    running = harness.start(read_status)
    for status in (running.answer(), status_of(running.pid)):
        assert {name: int(status[name], 16) for name in CAPABILITY_SETS} == dict.fromkeys(CAPABILITY_SETS, 0)
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"


def test_uid_0_would_mean_nothing_to_it(harness: Harness) -> None:
    def read_securebits(event: Any) -> Any:
        import ctypes

        return ctypes.CDLL(None).prctl(27, 0, 0, 0, 0)  # PR_GET_SECUREBITS

    keep_caps = 0x10
    assert (
        harness.answer(read_securebits) & ~keep_caps == 0xCF
    )  # NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, all locked


def test_each_has_a_uid_of_its_own_out_of_its_zygotes_block(harness: Harness) -> None:
    sandboxes = [harness.start(read_status) for _ in range(3)]
    block = harness.root.uids
    uids = set()
    for running in sandboxes:
        assert running.answer()["Uid"].split() == ["1000"] * 4
        assert running.answer()["Gid"].split() == ["1000"] * 4
        assert running.answer()["Groups"] == ""
        outside = status_of(running.pid)
        (uid,) = set(outside["Uid"].split()) | set(outside["Gid"].split())
        assert block.absolute < int(uid) < block.absolute + block.count
        assert Path(f"/proc/{running.pid}/uid_map").read_text().split() == ["1000", uid, "1"]
        assert Path(f"/proc/{running.pid}/gid_map").read_text().split() == ["1000", uid, "1"]
        uids.add(uid)
    assert len(uids) == 3


@pytest.mark.parametrize("network", ["host", "none"])
def test_its_namespaces_are_its_own(harness: Harness, network: str) -> None:
    running, other = (harness.start(read_status, network=network) for _ in range(2))
    assert [each.answer()["NSpid"].split()[-1] for each in (running, other)] == ["1", "1"]
    ours, host, others = (namespaces_of(pid) for pid in (running.pid, "self", other.pid))
    for kind in OWN_NAMESPACES:
        assert ours[kind] not in (host[kind], others[kind]), kind
    assert ours["mnt"] == others["mnt"] != host["mnt"]
    assert (ours["net"] == host["net"]) == (network == "host")
    assert (ours["net"] == others["net"]) == (network == "host")


def test_it_holds_the_first_four_descriptors_and_no_more(harness: Harness) -> None:
    def read_fds(event: Any) -> Any:
        import os

        held = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                held[name] = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
            except FileNotFoundError:  # the one that listdir itself had open
                pass
        return held

    running = harness.start(read_fds)
    assert running.answer() == {"0": "/dev/null", "1": "pipe", "2": "pipe", "3": "socket"}
    assert sorted(os.listdir(f"/proc/{running.pid}/fd")) == ["0", "1", "2", "3"]


def test_its_limits_are_set(harness: Harness) -> None:
    def read_limits(event: Any) -> Any:
        import resource

        return [resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)]

    assert harness.answer(read_limits, open_files=77) == [[77, 77], [1, 1]]


def test_it_can_signal_no_one_but_itself(harness: Harness) -> None:
    def signal_all(pids: Any) -> Any:
        import os
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        outcomes: list[Any] = []
        for pid in [*pids, -1]:
            try:
                os.kill(pid, signal.SIGTERM)
                outcomes.append("reached")
            except OSError as error:
                outcomes.append(error.errno)
        seen = [name for name in os.listdir("/proc") if name.isdigit()]
        reached = [str(number) for number in range(1, 1000) if os.path.exists(f"/proc/{number}/status")]
        return outcomes, os.readlink("/proc/self"), seen, reached

    other = harness.start(read_status)
    outcomes, own, seen, reached = harness.answer(signal_all, [os.getpid(), other.pid, 2, 3])
    assert outcomes == [errno.ESRCH] * 5
    assert seen == reached == [own]
    assert own == "1"
    assert other.answer()["NSpid"].split()[-1] == "1"


def test_nothing_of_the_daemon_is_in_its_environment_or_its_arguments(harness: Harness) -> None:
    def read(event: Any) -> Any:
        import os
        import socket

        return dict(os.environ), open("/proc/self/environ").read(), socket.gethostname(), os.getcwd()

    os.environ["SOCKD_TEST_CANARY"] = "canary-of-the-daemon"
    try:
        running = harness.start(read, env={"OWN": "yes"})
    finally:
        del os.environ["SOCKD_TEST_CANARY"]
    environment, at_exec, hostname, cwd = running.answer()
    assert environment["OWN"] == "yes"
    assert environment["HOME"] == "/tmp"
    assert "canary-of-the-daemon" not in str(environment) + at_exec
    assert "OWN" not in at_exec
    assert (hostname, cwd) == ("sandbox", "/var/task")
