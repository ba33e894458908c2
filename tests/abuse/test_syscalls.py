"""Group C: the kernel as a sandbox meets it. The list of calls that was reviewed is golden_syscalls.txt."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sockd.linux.syscall_table import NUMBERS
from tests.abuse.attack import PRELUDE, WORTH_A_ZYGOTE, attack, in_zygote
from tests.abuse.prelude import in_child, outcome, refusal, syscall
from tests.support.cases import Happened, case
from tests.support.emulated import SLOWER
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel
from tests.support.threads import at_once
from tests.support.worker_processes import INITIAL_USER_NAMESPACE, Process

HERE = Path(__file__).parent
LAST = 460
ENOUGH = 50
"""Looks at sandboxes, at least, while they come and go."""
DENIED = ("EPERM", "ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ENOPROTOOPT", "killed by SIGSYS")


@dataclass(frozen=True)
class Line:
    """One call of the reviewed list."""

    number: int
    name: str
    verdict: str
    arguments: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """After which it is said to block. What is refused never does, however busy the machine is."""
        return 0.15 if self.verdict in ("allowed", "blocks") else 5.0

    def meets(self, seen: str) -> bool:
        """Whether what was seen is what was reviewed. A call that is allowed may be one that this kernel has not."""
        if self.verdict == "allowed":
            return seen not in DENIED or seen == "ENOSYS"
        return seen in self.verdict.split("|")


def golden(file: str = "golden_syscalls.txt") -> Iterator[Line]:
    """The lines: number, name, verdict, arguments if -1 six times would not do."""
    for text in (HERE / file).read_text().splitlines():
        if text and not text.startswith("#"):
            number, name, verdict, *arguments = text.split()
            yield Line(int(number), name, verdict.replace("_", " "), tuple(int(each, 0) for each in arguments))


def test_the_list_holds_every_number_under_its_name() -> None:
    names = {number: name for name, number in NUMBERS.items()}
    lines = list(golden())
    assert {line.number for line in lines} == set(range(LAST + 1))
    assert [line for line in lines if line.name != names.get(line.number, "-")] == []


@case("C1", "make every system call from 0 to 460", expect="what the reviewed list says of each")
def test_every_call_does_what_was_reviewed(worker: PrivateWorker, happened: Happened) -> None:
    lines = list(golden())
    probe = (HERE / "syscall_probe.py").read_text()
    for network in ("host", "none"):  # a spare, if there is one; and a fork of its own
        worker.deploy(
            f"probe-{network}", {"f.py": probe, "prelude.py": PRELUDE}, timeout_s=40 * SLOWER, network=network
        )
    seen = worker.call("probe-none", [[line.number, line.arguments, line.seconds] for line in lines])
    wrong = [f"{line.number} {line.name}: {was}" for line, was in zip(lines, seen, strict=True) if not line.meets(was)]
    counts = {verdict: sum(line.verdict == verdict for line in lines) for verdict in ("allowed", *DENIED[:5])}
    happened(f"{len(lines)} calls of {LAST + 1} numbers: {counts}; {len(wrong)} otherwise {wrong[:8]}")
    assert wrong == []


def refuse_namespaces(event: Any) -> Any:
    """User and other namespaces, by every call that makes one."""
    bits = (0x20000, 0x80, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
    tried = {}
    for bit in bits:
        tried[f"unshare {bit:#x}"] = refusal(272, bit)
        tried[f"clone {bit:#x}"] = in_child(refusal, 56, bit | 17, 0, 0, 0, 0)
        tried[f"clone3 {bit:#x}"] = refusal(435, struct.pack("8Q", bit, 0, 0, 0, 17, 0, 0, 0), 64)
    return tried


@case(
    "C2", "unshare, clone, clone3 with each CLONE_NEW* flag", expect="EPERM; clone3 ENOSYS, so that libraries fall back"
)
def test_no_namespace_can_be_made(worker: PrivateWorker, happened: Happened) -> None:
    tried = attack(worker, refuse_namespaces)
    happened(f"{len(tried)} calls: {', '.join(sorted(set(tried.values())))}")
    time_bit = tried.pop("clone 0x80")  # a part of clone's exit signal, no flag
    assert time_bit in ("ends", "EINVAL", "EPERM", "ok")
    assert all(answer == ("ENOSYS" if name.startswith("clone3") else "EPERM") for name, answer in tried.items()), tried
    worker.deploy(
        "threads",
        "import threading\ndef f(event):\n    t = threading.Thread(target=int); t.start(); t.join(); return 1\n",
    )
    assert worker.call("threads") == 1


@case("C3", "io_uring, bpf, userfaultfd, perf_event_open, fanotify, /dev/userfaultfd", expect="EPERM", default=False)
def test_parts_of_the_kernel_with_a_history_are_closed(worker: PrivateWorker, happened: Happened) -> None:
    def use_them(event: Any) -> Any:
        zeros = bytes(256)
        tried = {f"bpf {command}": refusal(321, command, zeros, 128) for command in range(38)}
        for entries in (1, 8, 4096):
            tried[f"io_uring_setup {entries}"] = refusal(425, entries, zeros)
        for flags in (0, 1, 0x800):
            tried[f"userfaultfd {flags}"] = refusal(323, flags)
        for kind in range(8):
            tried[f"perf_event_open {kind}"] = refusal(298, struct.pack("II", kind, 128) + zeros, 0, -1, -1, 0)
        tried |= {"fanotify_init": refusal(300, 0, 0), "modify_ldt": refusal(154, 1, zeros, 16)}
        tried["/dev/userfaultfd"] = outcome(lambda: os.open("/dev/userfaultfd", os.O_RDWR))
        return tried

    for who, tried in (("handler", attack(worker, use_them)), ("Zygote", in_zygote(worker, use_them))):
        happened(f"{who}: {len(tried)} calls, {', '.join(sorted(set(tried.values())))}")
        assert tried.pop("/dev/userfaultfd") == "ENOENT" and set(tried.values()) == {"EPERM"}, tried


@case(
    "C4",
    "sockets of all 64 families, raw ones among them",
    expect="Unix, Internet and rtnetlink; EAFNOSUPPORT or EPERM",
    default=False,
)
def test_sockets_are_unix_internet_and_rtnetlink(worker: PrivateWorker, happened: Happened) -> None:
    def open_all(event: Any) -> Any:
        tried = {}
        for family in range(64):
            for kind in (1, 2, 3, 5):
                fd, answer = syscall(41, family, kind, 0)
                tried[f"{family} {kind}"] = answer or "ok"
                if fd >= 0:
                    os.close(fd)
        tried["2 raw icmp"] = refusal(41, 2, 3, 1)
        tried["10 raw icmp"] = refusal(41, 10, 3, 58)
        return tried

    for who, tried in (("handler", attack(worker, open_all)), ("Zygote", in_zygote(worker, open_all))):
        opened = sorted(name for name, answer in tried.items() if answer == "ok")
        happened(f"{who}: {len(opened)} of {len(tried)} open: {', '.join(opened)}")
        assert {name.split()[0] for name in opened} <= {"1", "2", "10", "16"} and not [n for n in opened if "raw" in n]
        assert not {"2 3", "10 3"} & set(opened)


@case("C5", "calls of x32 and of i386 (int 0x80)", expect="ENOSYS; SIGSYS", default=False)
def test_other_calling_conventions_are_closed(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy(
        "probe", {"f.py": (HERE / "syscall_probe.py").read_text(), "prelude.py": PRELUDE}, timeout_s=20 * SLOWER
    )
    x32 = worker.call("probe", [[0x40000000 | number, [], 5.0] for number in range(0, LAST, 5)])
    int80 = worker.call("probe", "int80")
    happened(f"x32: {', '.join(sorted(set(x32)))}; int 0x80: {int80}")
    assert set(x32) == {"ENOSYS"} and int80 == "killed by SIGSYS"


@case("C6", "personality(ADDR_NO_RANDOMIZE), also before an exec", expect="EPERM; addresses stay random", default=False)
def test_randomization_cannot_be_switched_off(worker: PrivateWorker, happened: Happened) -> None:
    def switch_off(event: Any) -> Any:
        import subprocess

        tried = [refusal(135, persona) for persona in (0x0040000, 0x0400000, 0x0440000, 8)]
        maps = [
            subprocess.run(["/bin/cat", "/proc/self/maps"], capture_output=True, text=True).stdout for _ in range(4)
        ]
        return tried, len({next(line for line in text.splitlines() if "[stack]" in line) for text in maps})

    tried, stacks = attack(worker, switch_off)
    happened(f"{', '.join(tried)}; 4 runs of a program had {stacks} different stacks")
    assert set(tried) == {"EPERM"} and stacks > 1


@case(
    "C7",
    "SIGSEGV, SIGABRT and SIGQUIT with RLIMIT_CORE raised",
    expect="no core file, no helper of the host runs",
    default=False,
)
def test_a_crash_leaves_no_core(worker: PrivateWorker, happened: Happened) -> None:
    def crash(event: Any) -> Any:
        import resource

        def kill_itself(number: int) -> None:
            os.kill(os.getpid(), number)

        raised = outcome(lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2))
        os.chdir("/tmp")
        ends = [in_child(kill_itself, number) for number in (11, 6, 3)]
        return raised, ends, os.listdir("/tmp"), resource.getrlimit(resource.RLIMIT_CORE)

    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    raised, ends, names, limit = attack(worker, crash)
    worker.deploy("crashes", "import os\ndef f(event): os.kill(os.getpid(), 11); import ctypes; ctypes.string_at(0)\n")
    answer = worker.invoke("crashes")
    happened(
        f"raising the limit: {raised}; {', '.join(ends)}; files: {names}; core_pattern {pattern!r}; {answer.error}"
    )
    assert raised in ("ValueError", "EPERM") and names == [] and limit == [1, 1]
    assert (answer.status, answer.error) == (502, "Runtime.ExitError")
    assert not list(worker.daemon.state.rglob("core*"))


SELF = """
import os, resource, prelude
def f(event):
    status = {line.partition(":")[0]: line.partition(":")[2].strip() for line in open("/proc/self/status")}
    limits = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in ("CORE", "NOFILE", "NPROC", "MEMLOCK")}
    secure = prelude.libc.prctl(27, 0, 0, 0, 0)
    dumpable = prelude.libc.prctl(3, 0, 0, 0, 0)
    bounding = [n for n in range(41) if prelude.libc.prctl(23, n, 0, 0, 0) == 1]
    names = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    maps = [open(f"/proc/self/{name}").read().split() for name in ("uid_map", "gid_map")]
    return [status, limits, secure, dumpable, bounding, names, maps, os.getgroups(), os.getpid()]
"""


@case(
    "C8",
    "read back uid, capabilities, no_new_privs, seccomp, rlimits, namespaces",
    expect="the specification, however it was started",
)
def test_every_kind_of_sandbox_is_confined_alike(worker: PrivateWorker, happened: Happened) -> None:

    worker.index.add(wheel("slow-import", "1.0", {"slow_import.py": WORTH_A_ZYGOTE}))
    code = {"f.py": SELF, "prelude.py": PRELUDE}
    ours = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("user", "pid", "ipc", "uts", "net", "mnt")}
    worker.daemon.when(lambda: worker.daemon.status()["sandboxes"]["spare"] or None)
    origins: dict[str, int] = {}
    with_package = {**code, "f.py": "import slow_import\n" + SELF, "requirements.txt": "slow-import"}
    worker.deploy("teaches", with_package)
    worker.call("teaches")
    names = {"spare": "host", "bare-1": "none", "bare-2": "none"} | {f"package-{number}": "host" for number in range(4)}
    for name, network in names.items():
        worker.deploy(name, with_package if "package" in name else code, network=network)
    for name in names:
        if "package" in name:
            worker.call(name)
            worker.call_learned(name)
    invoked = at_once(len(names), lambda n: worker.invoke(list(names)[n], x_sockd_fresh="1"))
    answers = dict(zip(names, invoked, strict=True))
    spaces: dict[str, list[str]] = {}
    for name, answer in answers.items():
        status, limits, secure, dumpable, bounding, namespaces, maps, groups, pid = answer.json
        origin = f"{answer.headers['x-sockd-origin']}, {'with a package' if 'package' in name else 'bare'}"
        origins[origin] = origins.get(origin, 0) + 1
        assert (status["Uid"], status["Gid"]) == ("\t".join(["1000"] * 4),) * 2 and groups == [] and pid == 1, name
        assert {int(status[key], 16) for key in status if key.startswith("Cap")} == {0} and bounding == [], (
            name,
            status,
        )
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", name
        assert secure == 0xCF and dumpable == 1, (name, hex(secure))
        assert limits["CORE"] == [1, 1] and limits["NOFILE"] == [1024, 1024], limits
        own = {"user", "pid", "ipc", "uts"} | ({"net"} if names[name] == "none" else set())
        assert all(namespaces[each] != ours[each] for each in (*own, "mnt")), (name, namespaces)
        assert (namespaces["net"] == ours["net"]) == (names[name] == "host"), name
        assert [each[0] for each in maps] == ["1000", "1000"] and [each[2] for each in maps] == ["1", "1"], maps
        for each in own:
            spaces.setdefault(each, []).append(namespaces[each])
    assert all(len(found) == len(set(found)) for found in spaces.values()), f"sandboxes share a namespace: {spaces}"

    def each_has_its_uid() -> bool:
        uids = [process.uid for process in worker.processes("sandbox") if process.inner_pid == 1]
        return len(uids) == len(set(uids)) and min(uids) >= 0x10000000

    worker.daemon.when(each_has_its_uid)  # a spare that a Zygote just forked still has the Zygote's
    happened(
        f"{origins}: uid 1000, own outside; no capability, no_new_privs, seccomp, securebits, rlimits as specified"
    )


@case(
    "C9",
    "sample every process of the farm from /proc during a burst of starts",
    expect="no capability over the host where foreign code runs",
)
def test_no_one_who_runs_foreign_code_has_a_capability_over_the_host(worker: PrivateWorker, happened: Happened) -> None:
    allowed = (
        1 << 6 | 1 << 7
    )  # SETGID and SETUID, to write id maps; of farm init and the root Zygote, which run our code only
    package_users = [f"user-{number}" for number in range(3)]

    worker.index.add(wheel("busy-import", "1.0", {"busy_import.py": WORTH_A_ZYGOTE}))
    for name in package_users:
        worker.deploy(
            name,
            f"import busy_import\nX = {name!r}\ndef f(event): return 1\n",
            requirements=["busy-import"],
            memory_mb=32,
        )
    worker.deploy("dies", "import os\ndef f(event): os._exit(0)\n", memory_mb=32)
    worker.deploy("alone", "import os\ndef f(event): os._exit(0)\n", memory_mb=32, network="none")
    if find_spec("wasmtime"):
        from tests.initscripts.guests import module

        script: dict[str, str | bytes] = {"f.py": "def f(event): return 1\n", "init.wasm": module("", notes=False)}
        worker.deploy("has-a-script", script, initscript={"wasm": "init.wasm"})
    seen: dict[str, int] = {}
    bad: list[str] = []

    def check(process: Process) -> None:
        seen[process.kind] = seen.get(process.kind, 0) + 1
        sets = process.capabilities
        held = sets["Eff"] | sets["Prm"] | sets["Inh"] | sets["Amb"]
        if process.user_namespace == INITIAL_USER_NAMESPACE:
            if process.kind not in ("init", "root zygote", "launcher", "engine") or held & ~allowed:
                bad.append(f"{process.kind} {process.pid}: {held:#x} over the host")
            if process.kind in ("launcher", "engine") and held:
                bad.append(f"{process.kind} {process.pid}: {held:#x}")
        if process.kind in ("root zygote", "init") and sets["Bnd"] & ~allowed and process.kind == "init":
            bad.append(f"init's bounding set is {sets['Bnd']:#x}")

    def load(thread: int) -> None:
        ends = time.monotonic() + 1.5
        while time.monotonic() < ends or seen.get("sandbox", 0) <= ENOUGH:
            for name in ("dies", "alone"):
                assert worker.invoke(name).status == 502
            assert worker.call(package_users[thread]) == 1

    with ThreadPoolExecutor(3) as pool:
        loads = [pool.submit(load, thread) for thread in range(3)]
        rounds = 0
        while not all(each.done() for each in loads):
            rounds += 1
            for process in worker.processes():
                check(process)
        for each in loads:
            each.result()
    happened(f"{rounds} rounds, {seen}; {len(bad)} with a capability that is not theirs {sorted(set(bad))[:3]}")
    assert bad == [] and seen.get("zygote")
