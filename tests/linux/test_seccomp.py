"""The seccomp policies: their verdict on every number by an interpreter, and the compiler of their programs."""

from __future__ import annotations

import errno
import functools
import itertools
import re
import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.linux.seccomp import compiler, seccomp
from sockd.linux.syscall_table import AARCH64, ARCHITECTURES, FIRST_UNKNOWN, NAMES, NUMBERS, X86_64, Architecture
from tests.linux.seccomp_policies import DENIED_TO_ALL, FILTERS, FOR_ZYGOTES, OWN_ID, sandbox_filter
from tests.support import bpf

EPERM = compiler.RET_ERRNO | errno.EPERM
ENOSYS = compiler.RET_ERRNO | errno.ENOSYS
EAFNOSUPPORT = compiler.RET_ERRNO | errno.EAFNOSUPPORT
EPROTONOSUPPORT = compiler.RET_ERRNO | errno.EPROTONOSUPPORT
ALLOW = compiler.RET_ALLOW

IDS = {
    **dict.fromkeys(("setuid", "setgid", "setfsuid", "setfsgid"), 1),
    **dict.fromkeys(("setreuid", "setregid"), 2),
    **dict.fromkeys(("setresuid", "setresgid"), 3),
}
"""Calls that set ids -> how many: sandboxes may call them if nothing changes."""
CHECKED = ["clone", "socket", "socketpair", "setsockopt", "fcntl", "personality", "ioctl", "mknodat", "setns"]

DENIED_TO_THE_ENGINE = """
    fork vfork mkdir mkdirat rmdir rename renameat renameat2 link linkat symlink symlinkat chown fchown lchown fchownat
    setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat process_madvise mlockall
    remap_file_pages personality shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr capset mknodat
""".split()


class Policy(NamedTuple):
    """What one kind of process may do on one architecture."""

    kind: str
    machine: Architecture

    def programs(self) -> list[bytes]:
        return [make(self.machine) for make in FILTERS[self.kind]]


def verdict(policy: Policy, call: int | str, *arguments: int, architecture: int | None = None) -> int:
    """What the filters of a process say to a call."""
    number = policy.machine.numbers[call] if isinstance(call, str) else call
    audit = policy.machine.audit if architecture is None else architecture
    return bpf.strictest(policy.programs(), number, *arguments, architecture=audit)


POLICIES = [Policy(kind, machine) for machine in ARCHITECTURES.values() for kind in FILTERS]


@pytest.fixture(params=POLICIES, ids=lambda policy: f"{policy.kind} on {policy.machine.name}")
def policy(request: pytest.FixtureRequest) -> Policy:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=ARCHITECTURES.values(), ids=lambda machine: machine.name)
def machine(request: pytest.FixtureRequest) -> Architecture:
    return request.param  # type: ignore[no-any-return]


def golden(policy: Policy, name: str) -> int:
    """The reviewed verdict for a call without an argument check."""
    if name == "clone3":
        return ENOSYS
    denied = DENIED_TO_ALL + (FOR_ZYGOTES if "handler" in policy.kind else [])
    return EPERM if name in denied else ALLOW


def test_every_number_gets_its_reviewed_verdict(policy: Policy) -> None:
    names = {number: name for name, number in policy.machine.numbers.items()}
    for number in range(FIRST_UNKNOWN):
        if names.get(number) in CHECKED or names.get(number) in IDS:
            continue
        wanted = golden(policy, names[number]) if number in names else EPERM
        assert verdict(policy, number) == wanted, (number, names.get(number))


def test_the_reviewed_lists_name_only_real_calls_and_none_twice() -> None:
    listed = [*DENIED_TO_ALL, *FOR_ZYGOTES, *IDS, *CHECKED]
    assert len(listed) == len(set(listed))
    assert set(listed) <= NAMES


def test_calls_newer_than_the_table_do_not_exist(policy: Policy) -> None:
    for number in (FIRST_UNKNOWN, FIRST_UNKNOWN + 1, 1000, 0x3FFFFFFF, 0xFFFFFFFF):
        assert verdict(policy, number) == ENOSYS


def test_x32_calls_do_not_exist(policy: Policy) -> None:
    for number in range(FIRST_UNKNOWN + 100):
        assert verdict(policy, 0x40000000 | number) == ENOSYS


def test_calls_of_another_architecture_kill(policy: Policy) -> None:
    others = {each.audit for each in ARCHITECTURES.values()} - {policy.machine.audit}
    for architecture in (*others, 0x40000003, 0x40000028, 0):  # i386, 32-bit ARM, nonsense
        assert verdict(policy, "read", architecture=architecture) == compiler.RET_KILL_PROCESS


def test_a_sandbox_may_set_the_ids_that_it_has_and_no_others(policy: Policy) -> None:
    kept, others = (OWN_ID, 0xFFFFFFFF, OWN_ID | 0xDEAD << 32), (0, OWN_ID + 1, 0xFFFFFFFE)
    for name, count in IDS.items():
        for ids in itertools.product((*kept, *others), repeat=count):
            wanted = EPERM if "handler" in policy.kind and any(each in others for each in ids) else ALLOW
            assert verdict(policy, name, *ids) == wanted, (name, ids)


NAMESPACES = (0x20000, *(1 << bit for bit in range(25, 31)))
A_ZYGOTE, A_SANDBOX = 0x10000000, 0x3C000000
FORKS = {"root": {A_ZYGOTE, A_SANDBOX}, "zygote": {A_ZYGOTE, A_SANDBOX}}
"""Sets of namespaces that zygote/native/fork.c asks for."""


def test_clone_makes_the_namespaces_that_forks_need_and_no_other_set(policy: Policy) -> None:
    for size in range(1, len(NAMESPACES) + 1):
        for chosen in itertools.combinations(NAMESPACES, size):
            flags = sum(chosen)
            wanted = ALLOW if flags in FORKS.get(policy.kind, ()) else EPERM
            for more in (0, 17, 0x3D0F00, 0x01201011):
                assert verdict(policy, "clone", flags | more) == wanted, hex(flags)


def test_only_roots_and_walled_zygotes_enter_namespaces_and_only_networks(policy: Policy) -> None:
    """A walled Zygote is under the root's filter alone."""
    for size in range(len(NAMESPACES) + 1):
        for chosen in itertools.combinations(NAMESPACES, size):
            wanted = ALLOW if policy.kind == "root" and sum(chosen) == seccomp.CLONE_NEWNET else EPERM
            assert verdict(policy, "setns", 3, sum(chosen)) == wanted, hex(sum(chosen))


def test_clone_makes_threads_and_processes(policy: Policy) -> None:
    for flags in (0x3D0F00, 0x1200011, 0x4111, 17):  # pthread_create, fork, posix_spawn, raw
        assert verdict(policy, "clone", flags) == ALLOW


def test_the_engine_may_do_less_than_a_handler(machine: Architecture) -> None:
    handler = Policy("handler", machine)
    names = {number: name for name, number in machine.numbers.items()}
    run = functools.partial(bpf.run, seccomp.engine_filter(machine), architecture=machine.audit)
    for number in range(FIRST_UNKNOWN + 2):
        name = names.get(number, "")
        if name not in CHECKED or name in DENIED_TO_THE_ENGINE:
            wanted = EPERM if name in DENIED_TO_THE_ENGINE else verdict(handler, number)
            assert run(number) == wanted, (number, name)
    for flags, wanted in {0x3D0F00: ALLOW, 0x1200011: EPERM, 0x4111: EPERM, 17: EPERM, 0x103D0F00: EPERM}.items():
        assert run(machine.numbers["clone"], flags) == wanted, hex(flags)
    for family in range(64):
        wanted = ALLOW if family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6) else EAFNOSUPPORT
        assert run(machine.numbers["socket"], family, 2) == wanted, family
    assert len(seccomp.engine_filter(machine)) // compiler.SOCK_FILTER.size <= 140


TYPES, PROTOCOLS = range(16), (0, 1, 2, 6, 12, 15, 17, 33, 41, 58, 132, 136, 255, 256, 262)
INTERNET = {(int(kind), protocol) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) for protocol in (0, 6, 17)}
ALLOWED_SOCKETS: dict[int, set[tuple[int, int]]] = {
    socket.AF_UNIX: {(kind, protocol) for kind in TYPES for protocol in PROTOCOLS},
    socket.AF_INET: INTERNET,
    socket.AF_INET6: INTERNET,
    socket.AF_NETLINK: {(socket.SOCK_RAW, 0), (socket.SOCK_DGRAM, 0)},
}


def test_sockets_are_unix_tcp_udp_and_rtnetlink(policy: Policy) -> None:
    for family in range(64):
        for kind in TYPES:
            for protocol in PROTOCOLS:
                allowed = (kind, protocol) in ALLOWED_SOCKETS.get(family, ())
                for flags in (0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0xDEAD << 32):
                    seen = verdict(policy, "socket", family, kind | flags, protocol)
                    assert (seen == ALLOW) == allowed, (family, kind, protocol)
    assert verdict(policy, "socket", socket.AF_PACKET, 3) == EAFNOSUPPORT
    assert verdict(policy, "socket", socket.AF_INET, 1, 262) == EPROTONOSUPPORT  # what libraries fall back from to TCP


def test_socket_pairs_are_unix(policy: Policy) -> None:
    for family in range(64):
        wanted = ALLOW if family == socket.AF_UNIX else EAFNOSUPPORT
        assert verdict(policy, "socketpair", family, 1) == wanted, family


REFUSED_OPTIONS = {1: {25, 62, 26, 50, 51, 52}, 6: {13, 31}, 17: {100}, 0: {51}, 41: set(), 270: set()}
"""Level -> options: SO_BINDTODEVICE, SO_BINDTOIFINDEX, SO_ATTACH_*; TCP_CONGESTION, TCP_ULP; UDP_ENCAP; IP_LOCAL_PORT_RANGE.

No other level."""


def test_options_of_sockets(policy: Policy) -> None:
    for level in range(300):
        for option in range(128):
            allowed = level in REFUSED_OPTIONS and option not in REFUSED_OPTIONS[level]
            for garbage in (0, 0xDEAD << 32):
                seen = verdict(policy, "setsockopt", 3, level | garbage, option | garbage)
                assert (seen == ALLOW) == allowed, (level, option)


def test_leases_and_directory_notifications_are_refused(policy: Policy) -> None:
    for command in range(1100):
        wanted = EPERM if command in (1024, 1026) else ALLOW
        assert verdict(policy, "fcntl", 3, command) == verdict(policy, "fcntl", 3, command | 0xDEAD << 32) == wanted


def test_personality_may_be_asked_but_not_changed(policy: Policy) -> None:
    for persona, wanted in {0: ALLOW, 0xFFFFFFFF: ALLOW, 0x0040000: EPERM, 8: EPERM, 0x0400000: EPERM}.items():
        assert verdict(policy, "personality", persona) == wanted


def test_no_one_types_into_a_terminal(policy: Policy) -> None:
    for request, wanted in {0x5412: EPERM, 0x541C: EPERM, 0x5401: ALLOW, 0x5421: ALLOW, 0: ALLOW}.items():
        assert verdict(policy, "ioctl", 3, request) == wanted


def test_bits_that_the_kernel_ignores_change_nothing(policy: Policy) -> None:
    garbage = 0xDEAD << 32
    assert verdict(policy, "ioctl", 3, 0x5412 | garbage) == EPERM
    assert verdict(policy, "socket", socket.AF_INET | garbage, 1) == ALLOW
    assert verdict(policy, "clone", 0x20000 | garbage) == EPERM


def test_only_fifos_are_made_by_mknodat(policy: Policy) -> None:
    for kind, wanted in {stat.S_IFIFO: ALLOW, stat.S_IFCHR: EPERM, stat.S_IFBLK: EPERM, stat.S_IFREG: EPERM}.items():
        assert verdict(policy, "mknodat", 3, 0, kind | 0o644) == wanted


def test_the_programs_stay_small(policy: Policy) -> None:
    first, *added = (len(program) // compiler.SOCK_FILTER.size for program in policy.programs())
    assert first <= {X86_64: 123, AARCH64: 127}[policy.machine]  # once for all
    assert max(added, default=0) <= 33  # in each child


@given(st.data())
def test_any_policy_compiles_to_what_it_says(data: st.DataObject) -> None:
    machine = data.draw(st.sampled_from(list(ARCHITECTURES.values())))
    names = st.sampled_from(sorted(NAMES))
    allow = data.draw(st.sets(names, max_size=30))
    absent = data.draw(st.sets(names, max_size=5))
    odd = compiler.Switch(1, tuple((each, compiler.refused(errno.EACCES)) for each in (1, 2, 3)), ALLOW, mask=0xFF)
    checks = dict.fromkeys(data.draw(st.sets(names, max_size=3)), odd)
    program = compiler.compile_filter(allow, checks=checks, absent=absent, otherwise=errno.EIO, architecture=machine)
    run = functools.partial(bpf.run, program, architecture=machine.audit)
    for name, number in machine.numbers.items():
        if name in checks:
            assert run(number, 0, 0x104) == ALLOW
            assert run(number, 0, 0x102) == compiler.RET_ERRNO | errno.EACCES
        elif name in absent:
            assert run(number) == ENOSYS
        else:
            assert run(number) == (ALLOW if name in allow else compiler.RET_ERRNO | errno.EIO)


def test_a_restriction_takes_away_what_it_names_and_nothing_else(machine: Architecture) -> None:
    inner = compiler.only(1, 5, 6, otherwise=errno.EACCES)
    nested = compiler.Switch(0, ((1, inner), (2, ALLOW), (3, inner)), compiler.refused(errno.EIO))
    program = compiler.compile_restriction(["chroot", "mount"], checks={"ioctl": nested}, architecture=machine)
    numbers, run = machine.numbers, functools.partial(bpf.run, program, architecture=machine.audit)
    for number in (*range(FIRST_UNKNOWN + 2), 1000, 0x40000000, 0xFFFFFFFF):
        if number != numbers["ioctl"]:
            denied = number in (numbers["chroot"], numbers["mount"])
            assert run(number) == (EPERM if denied else ALLOW), number
    answers = {(first, second): run(numbers["ioctl"], first, second) for first in range(5) for second in (5, 7)}
    inside, outside = {(1, 5): ALLOW, (3, 5): ALLOW, (2, 5): ALLOW, (2, 7): ALLOW}, {(1, 7), (3, 7)}
    for arguments, answer in answers.items():
        wanted = compiler.refused(errno.EACCES if arguments in outside else errno.EIO)
        assert answer == inside.get(arguments, wanted), arguments


def test_a_program_too_long_for_a_jump_is_refused() -> None:
    every_other = [name for name, number in NUMBERS.items() if number % 4 < 2]
    checks = {name: compiler.only(0, number) for name, number in NUMBERS.items() if number % 4 == 3}
    with pytest.raises(ValueError, match="8 bits"):
        compiler.compile_filter(every_other, checks=checks)


def test_a_misspelt_call_is_refused() -> None:
    with pytest.raises(KeyError):
        compiler.compile_filter(["raed"], checks={})


def test_other_machines_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine="riscv64"))
    for make in (seccomp.root_filter, seccomp.zygote_filter, seccomp.engine_filter):
        with pytest.raises(RuntimeError, match="of x86_64 and aarch64; this machine is riscv64"):
            make.__wrapped__()


def test_a_filter_is_this_machines_if_no_other_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, machine in ARCHITECTURES.items():
        monkeypatch.setattr("os.uname", lambda name=name: SimpleNamespace(machine=name))
        assert seccomp.root_filter.__wrapped__() == seccomp.root_filter(machine)
        assert seccomp.sandbox_filter.__wrapped__(OWN_ID) == sandbox_filter(machine)


def test_a_call_that_one_architecture_lacks_is_no_misspelling() -> None:
    assert "open" not in AARCH64.numbers
    program = compiler.compile_filter(["open", "openat"], checks={}, architecture=AARCH64)
    allowed = [
        number for number in range(FIRST_UNKNOWN) if bpf.run(program, number, architecture=AARCH64.audit) == ALLOW
    ]
    assert allowed == [AARCH64.numbers["openat"]]


def test_architectures_share_numbers_from_424_on_and_aarch64_has_no_call_of_its_own() -> None:
    def shared(machine: Architecture) -> dict[str, int]:
        return {name: number for name, number in machine.numbers.items() if number >= 424}

    assert shared(X86_64) == shared(AARCH64)
    assert set(AARCH64.numbers) < set(X86_64.numbers)


HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",  # which Debian has on all architectures
}


def test_the_table_agrees_with_the_systems_own_header(machine: Architecture) -> None:
    header = Path(HEADERS[machine.name])
    if not header.exists():
        pytest.skip("no kernel headers (apt install linux-libc-dev)")
    # The generic header has __NR3264_ where 32-bit architectures have another call of that number.
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    theirs = {{"fstatat": "newfstatat"}.get(name, name): int(number) for name, number in found}
    ours = {name: number for name, number in machine.numbers.items() if number < theirs.get("syscalls", FIRST_UNKNOWN)}
    assert len(ours) > 290 and {name: theirs.get(name) for name in ours if name in theirs} == {
        name: number for name, number in ours.items() if name in theirs
    }
    if machine is AARCH64:  # no other call than those of 32-bit architectures is missing
        missing = theirs.keys() - ours.keys()
        assert {name for name in missing if not name.endswith("64")} <= {
            "arch_specific_syscall",
            "syscalls",
            "sync_file_range2",
        }
        assert ours.keys() <= theirs.keys()


# ---- the kernel's own verdict -----------------------------------------------------------------------------------------
