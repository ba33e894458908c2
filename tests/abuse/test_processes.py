"""Group B: from a sandbox, or a package in a Zygote, to processes, IPC objects, networks and channels of others."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.attack import PRELUDE, WORTH_A_ZYGOTE, attack, files, in_zygote
from tests.abuse.prelude import (
    living_pids,
    name_of,
    outcome,
    read,
    readable,
    refusal,
    syscall,
)
from tests.daemon.kernel_view import host_pid, unified, wait_readable
from tests.daemon.running import Gate, in_background
from tests.support.cases import Happened, case
from tests.support.package_index import wheel
from tests.support.private_worker import PrivateWorker

WAITS = """
from gate import wait
import os
def f(event): return [wait(event, open("/proc/self/cgroup").read().split("0::")[1].strip()), os.getpid()]
"""


@contextmanager
def victim(house: PrivateWorker, **settings: Any) -> Iterator[int]:
    """A function in the middle of a request; the body gets its pid on the host. It must end well afterwards."""
    gate = Gate()
    house.deploy("victim", {"f.py": WAITS, "gate.py": Gate.CODE}, timeout_s=20, **settings)
    try:
        with in_background(lambda: house.invoke("victim", gate.port)) as answer:
            cgroup = unified(gate.arrived())
            try:
                yield host_pid(cgroup)
            finally:
                gate.open()
            assert answer().json == ["go", 1]
    finally:
        gate.close()


@case("B1", "kill(-1, 9), and kill of every pid from 1 to 5 000", expect="its own processes die, nobody else does")
def test_a_signal_reaches_only_its_senders_own(house: PrivateWorker, happened: Happened) -> None:
    def kill_all(event: Any) -> Any:
        child = os.fork()
        if child == 0:
            select.select([], [], [], 60)
            os._exit(0)
        reached = [pid for pid in living_pids() if pid not in (os.getpid(), child)]
        group = outcome(lambda: os.kill(-1, 9))
        return [reached, group, os.waitpid(child, 0)[1] & 0x7F]

    def kill_others(event: Any) -> Any:
        """From a Zygote: everyone but itself. It sees the farm's pids."""
        results: dict[str, int] = {}
        for pid in living_pids():
            if pid != os.getpid():
                for number in (9, 19):
                    answer = outcome(os.kill, pid, number)
                    results[answer] = results.get(answer, 0) + 1
        return results, outcome(lambda: os.kill(-1, 9))

    daemon, known = house.daemon.pid, {process.pid for process in house.processes("init", "root zygote", "launcher")}
    with victim(house):
        reached, group, ended_by = attack(house, kill_all)
        happened(f"handler: {len(reached)} others reached, kill(-1) {group}, its child died of {ended_by}")
        assert reached == [] and ended_by == signal.SIGKILL
        results, everybody = in_zygote(house, kill_others)
        happened(f"Zygote: {results}, kill(-1) {everybody}")
        # kill(-1) says nothing: the kernel leaves out who may not be killed, and calls that a success.
        assert set(results) == {"EPERM"}
    assert house.daemon.pid == daemon
    assert known <= {process.pid for process in house.processes()}


@case(
    "B2", "ptrace, process_vm_readv/writev, pidfd_getfd, /proc/<pid>/mem of a sibling", expect="ESRCH or EPERM; no byte"
)
def test_nobody_reads_anothers_memory(house: PrivateWorker, happened: Happened) -> None:
    def read_others(event: Any) -> Any:
        results: dict[str, int] = {}
        me = os.getpid()
        buffer = bytes(64)
        vector = struct.pack("QQ", 0, 0)
        for pid in [*range(1, 100), *event]:
            if pid == me:
                continue
            pidfd = syscall(434, pid, 0)[0]
            tried = {
                "PTRACE_ATTACH": refusal(101, 16, pid, 0, 0),
                "PTRACE_SEIZE": refusal(101, 0x4206, pid, 0, 0),
                "process_vm_readv": refusal(310, pid, vector, 1, vector, 1, 0),
                "process_vm_writev": refusal(311, pid, vector, 1, vector, 1, 0),
                "kcmp": refusal(312, me, pid, 0, 0, 0),
                "pidfd_getfd": refusal(438, pidfd, 0, 0),
                "setns": refusal(308, pidfd, 0x08000000),
                "move_pages": refusal(279, pid, 0, 0, 0, 0, 0),
                "mem": outcome(read, f"/proc/{pid}/mem", 1),
                "prlimit": refusal(302, pid, 7, 0, buffer),
                "sched_setaffinity": refusal(203, pid, 8, b"\1" + bytes(7)),
                "setpriority": refusal(141, 0, pid, 10),
                "ioprio_set": refusal(251, 1, pid, 0x4007),
            }
            if pidfd >= 0:
                tried["process_madvise"] = refusal(440, pidfd, vector, 1, 21, 0)
                os.close(pidfd)
            for name, answer in tried.items():
                results[f"{name} {answer}"] = results.get(f"{name} {answer}", 0) + 1
        return results

    with victim(house) as pid:
        for who, results in (
            ("handler", attack(house, read_others, [pid])),
            ("Zygote", in_zygote(house, read_others, [pid])),
        ):
            answers = {name.split()[1] for name in results}
            happened(f"{who}: {sum(results.values())} tries, {', '.join(sorted(answers))}")
            assert answers <= {"EPERM", "ESRCH", "ENOENT", "EACCES", "EBADF", "EINVAL"}, results


@case(
    "B3",
    "connect to abstract sockets of the host and of a sibling",
    expect="none: ECONNREFUSED; host: reached, as documented",
)
def test_abstract_sockets_follow_the_network(house: PrivateWorker, happened: Happened) -> None:
    def connect(event: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as sock:
            return name_of(sock.connect_ex("\0" + event)) if sock else None

    name = f"sockd-selftest-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        none = attack(house, connect, name, network="none")
        host = attack(house, connect, name, network="host")
    happened(f"none: {none}; host: {'connected, as documented' if host == '0' else host}")
    assert none == "ECONNREFUSED" and host == "0"


@case("B4", "bind the daemon's own port inside", expect="none: its own namespace, the door stays; host: EADDRINUSE")
def test_the_daemons_port_cannot_be_taken(house: PrivateWorker, happened: Happened) -> None:
    def bind(event: Any) -> Any:
        def listen(sock: socket.socket, address: str) -> None:
            sock.bind((address, event))
            sock.listen()

        tried = []
        for address in ("0.0.0.0", "127.0.0.1"):
            for reuse in (False, True):
                with socket.socket() as sock:
                    if reuse:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    tried.append(outcome(listen, sock, address))
        return tried

    port = house.daemon.port
    with house.watching() as watch:
        none = attack(house, bind, port, network="none")
        host = attack(house, bind, port, network="host")
    happened(f"none: {', '.join(none)}; host: {', '.join(host)}; {watch}")
    assert watch.wrong == []
    assert set(none) == {"ok"} and set(host) <= {"EADDRINUSE", "EACCES"}


@case(
    "B5", "network=none: TCP and UDP to 1.1.1.1, metadata, loopback, DNS", expect="ENETUNREACH within 10 ms; no packet"
)
def test_without_network_nothing_is_reached_and_nothing_hangs(house: PrivateWorker, happened: Happened) -> None:
    def connect(event: Any) -> Any:
        targets = [("1.1.1.1", 80), ("169.254.169.254", 80), ("127.0.0.1", event), ("8.8.8.8", 53), ("10.0.0.1", 22)]
        results, slowest = {}, 0.0
        for target in targets:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                started = time.monotonic()
                with socket.socket(socket.AF_INET, kind) as sock:
                    sock.settimeout(3)
                    results[f"{target} {int(kind)}"] = name_of(sock.connect_ex(target))
                slowest = max(slowest, time.monotonic() - started)
        with socket.socket(socket.AF_INET6) as sock:
            results["::1"] = name_of(sock.connect_ex(("::1", event)))
        started = time.monotonic()
        results["dns"] = outcome(lambda: socket.getaddrinfo("example.com", 80))
        dns = time.monotonic() - started
        return results, slowest, dns

    results, slowest, dns = attack(house, connect, house.daemon.port, network="none")
    happened(
        f"{len(results)} targets: {', '.join(sorted(set(results.values())))}; "
        f"slowest {slowest * 1000:.1f} ms, DNS {dns * 1000:.0f} ms"
    )
    assert results.pop("dns") not in ("ok", "0")
    assert set(results.values()) <= {"ENETUNREACH", "EADDRNOTAVAIL"}
    assert slowest < 0.5 and dns < 2  # the promise of 10 ms is told, not judged: machines are busy


@case("B6", "SysV shm, sem, msg, POSIX mq and /dev/shm names of a sibling", expect="ENOENT; nothing in common")
def test_ipc_names_are_ones_own(house: PrivateWorker, happened: Happened) -> None:
    def make(event: Any) -> Any:
        create = 0o1666
        made = {
            "shm": syscall(29, 0x50CD, 4096, create)[0] >= 0,
            "sem": syscall(64, 0x50CD, 1, create)[0] >= 0,
            "msg": syscall(68, 0x50CD, create)[0] >= 0,
            "mq": syscall(240, b"sockd-selftest", os.O_CREAT | os.O_RDWR, 0o666, 0)[1] or "ok",
        }
        from multiprocessing import shared_memory

        block = shared_memory.SharedMemory("sockd-selftest", create=True, size=4096)
        block.close()
        return made

    def look(event: Any) -> Any:
        found = {
            "shm": refusal(29, 0x50CD, 0, 0),
            "sem": refusal(64, 0x50CD, 0, 0),
            "msg": refusal(68, 0x50CD, 0),
            "mq": refusal(240, b"sockd-selftest", os.O_RDWR, 0, 0),
            "/dev/shm": outcome(lambda: os.stat("/dev/shm/sockd-selftest")),
        }
        ids = sum(syscall(31, number, 2, bytes(256))[0] >= 0 for number in range(64))
        return found, ids, os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []

    house.deploy("maker", files(make))
    made = house.call("maker")
    assert made["shm"] and made["sem"] and made["msg"], made
    for who, (found, ids, names) in (("sibling", attack(house, look)), ("Zygote", in_zygote(house, look))):
        happened(f"{who}: {', '.join(sorted(set(found.values())))}, {ids} segments, {len(names)} names")
        assert set(found.values()) == {"ENOENT"} and ids == 0 and "sockd-selftest" not in names, found
    assert not Path("/dev/shm/sockd-selftest").exists()
    assert "0x000050cd" not in Path("/proc/sysvipc/shm").read_text()


@case("B7", "add_key, request_key, keyctl on every keyring", expect="EPERM")
def test_keyrings_are_closed(house: PrivateWorker, happened: Happened) -> None:
    def keys(event: Any) -> Any:
        tried = {}
        for ring in (-1, -2, -3, -4, -5, -6, -7):
            tried[f"add_key {ring}"] = refusal(248, b"user", b"sockd", b"hunter2", 7, ring)
            tried[f"request_key {ring}"] = refusal(249, b"user", b"sockd", 0, ring)
            for operation in (0, 1, 3, 5, 6, 8, 9, 10, 11, 12, 17, 22, 30):
                tried[f"keyctl {operation} {ring}"] = refusal(250, operation, ring, 0, 0, 0)
        return tried, readable(["/proc/keys", "/proc/key-users"])

    for who, (tried, files_read) in (("handler", attack(house, keys)), ("Zygote", in_zygote(house, keys))):
        happened(
            f"{who}: {len(tried)} calls, {', '.join(sorted(set(tried.values())))}; {len(files_read)} key files read"
        )
        assert set(tried.values()) == {"EPERM"}, tried
        assert "/proc/keys" not in files_read or who == "Zygote"


@case(
    "B8", "leave a daemonised grandchild behind (double fork, setsid)", expect="frozen with its sandbox, gone with it"
)
def test_grandchildren_end_with_their_sandbox(house: PrivateWorker, happened: Happened) -> None:
    def daemonise(event: Any) -> Any:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for fd in range(3):
                    os.close(fd)
                while True:
                    select.select([], [], [], 0.001)
            os._exit(0)
        os.wait()
        return True

    known = {process.pid for process in house.processes("sandbox")}
    house.deploy("daemonises", files(daemonise))
    assert house.call("daemonises")
    left = [process for process in house.processes("sandbox") if process.pid not in known and process.inner_pid > 1]
    assert left, "no grandchild is there to be seen"
    pidfds = [os.pidfd_open(process.pid) for process in left]
    try:
        house.daemon.remove("daemonises")
        gone = [wait_readable(pidfd, 5) for pidfd in pidfds]
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
    happened(f"{len(left)} were there after the answer, {sum(gone)} of them gone with the sandbox")
    assert all(gone)


CHANNEL_ATTACKS = {
    "garbage": "os.write(3, os.urandom(4096))",
    "a header of 1 GB": "os.write(3, struct.pack('<IBBHQ', 1 << 30, 5, 0, 0, 1))",
    "an unknown frame": "os.write(3, struct.pack('<IBBHQ', 0, 99, 0, 0, 1))",
    "a zero frame": "os.write(3, bytes(16))",
    "PRIMED twice": "os.write(3, struct.pack('<IBBHQ', 0, 1, 0, 0, 0) * 2); return 'fine'",
    "READY again": "os.write(3, struct.pack('<IBBHQ', 16, 3, 0, 0, 0) + bytes(16))",
    "INIT to the daemon": "os.write(3, struct.pack('<IBBHQ', 2, 2, 0, 0, 0) + b'{}')",
    "a RESULT without times": "os.write(3, struct.pack('<IBBHQ', 1, 5, 0, 0, 1) + b'x')",
    "MODULES of nonsense": "os.write(3, struct.pack('<IBBHQ', 9, 7, 0, 0, 0) + b'[[1,2,3]]'); return 'fine'",
    "MODULES nested deeply": "os.write(3, struct.pack('<IBBHQ', 99000, 7, 0, 0, 0) + b'[' * 99000); return 'fine'",
    "half a frame, for ever": "os.write(3, b'x'); threading.Event().wait()",
    "one byte at a time": "[os.write(3, bytes([n % 7])) and time.sleep(0.01) for n in range(1000)]",
    "descriptors beside it": (
        "s = socket.socket(fileno=os.dup(3)); fds = array.array('i', [0, 1, 2, 3] * 60);"
        " [s.sendmsg([b'\\0'], [(1, 1, fds)]) for _ in range(16)]"
    ),
    "a flood": "[os.write(3, bytes(65536)) for _ in range(16384)]",
    "shutdown": "socket.socket(fileno=os.dup(3)).shutdown(socket.SHUT_RDWR); threading.Event().wait()",
}


@case(
    "B9",
    "garbage, 1 GB, slow bytes, descriptors on the channel to the daemon",
    expect="the sandbox is destroyed; the daemon is well",
)
def test_the_channel_takes_nothing_but_its_protocol(house: PrivateWorker, happened: Happened) -> None:
    fds_before = len(os.listdir(f"/proc/{house.daemon.pid}/fd"))
    told = {}
    with house.watching() as watch:
        for number, (name, code) in enumerate(CHANNEL_ATTACKS.items()):
            modules = "import array, os, socket, struct, threading, time\n"
            house.deploy(
                f"channel-{number}", f"{modules}def f(event):\n    {code}\n    return 'lived'\n", timeout_s=1.0
            )
            answer = house.invoke(f"channel-{number}")
            told[name] = f"{answer.status} {answer.error}".strip()
            assert answer.status in (502, 504) or (answer.status == 200 and "fine" in code), (name, answer)
            house.daemon.remove(f"channel-{number}")
    counts = {text: list(told.values()).count(text) for text in sorted(set(told.values()))}
    happened(f"{len(told)} attacks: {counts}; {watch}")
    assert watch.wrong == []
    assert len(os.listdir(f"/proc/{house.daemon.pid}/fd")) < fds_before + 150


@case(
    "B10",
    "close descriptors 0 to 2, or the channel, and go on",
    expect="closing 0-2 harms nobody; without channel Runtime.ExitError",
)
def test_a_handler_without_descriptors(house: PrivateWorker, happened: Happened) -> None:
    house.deploy("closes-stdio", "import os\ndef f(event):\n    os.closerange(0, 3)\n    return 'answered'\n")
    stdio = house.invoke("closes-stdio")
    house.deploy("closes-all", "import os\ndef f(event):\n    os.closerange(0, 100)\n    return 'answered'\n")
    channel = house.invoke("closes-all")
    happened(f"0-2: {stdio.status} {stdio.body.decode()[:40]}; all: {channel.status} {channel.error}")
    assert stdio.status == 200 or stdio.error == "Runtime.ExitError"
    assert (channel.status, channel.error) == (502, "Runtime.ExitError")


@case("B11", "answer for another request's number, or twice", expect="rejected: nobody gets an answer that is not his")
def test_answers_cannot_be_forged(house: PrivateWorker, happened: Happened) -> None:
    forge = (
        "import os, struct\n"
        "def result(number, body): return struct.pack('<IBBHQ', 16 + len(body), 5, 0, 0, number) + bytes(16) + body\n"
        "def f(event):\n"
        "    if event == 'others':\n"
        "        for number in range(1, 100000): os.write(3, result(number, b'\"forged\"'))\n"
        "    if event == 'twice':\n"
        "        import sys\n"
        "        frame = sys._getframe()\n"
        "        while 'number' not in frame.f_locals: frame = frame.f_back\n"
        "        os.write(3, result(frame.f_locals['number'], b'\"first\"'))\n"
        "    return event\n"
    )
    house.deploy("forger", forge, concurrency=1)
    with victim(house), house.watching() as watch:
        others = house.invoke("forger", "others")
        twice = house.invoke("forger", "twice")
        after = house.invoke("forger", "after")
    happened(
        f"for others: {others.status} {others.error}; twice: {twice.status} {twice.body.decode()[:30]}; "
        f"then: {after.body.decode()[:30]}; {watch}"
    )
    assert others.status == 502 and "forged" not in others.body.decode()
    assert (after.status, after.json) == (200, "after")
    assert watch.wrong == []


@case(
    "B12",
    "look for another sandbox's log, environment and /tmp, also after its uid was given to the next",
    expect="nothing",
)
def test_nothing_of_one_sandbox_is_left_for_the_next(house: PrivateWorker, happened: Happened) -> None:
    leave = (
        "import os\nprint('canary-in-log')\n"
        "def f(event):\n"
        "    open('/tmp/canary-file', 'w').write('canary-in-tmp')\n"
        "    return os.environ['CANARY']\n"
    )
    look = (
        "import os\n"
        "def f(event):\n"
        "    import re\n"
        "    needle = re.compile(b'canary-in-env-of-[t]he-first')\n"
        "    found = [name for name in os.listdir('/tmp')] + [k for k, v in os.environ.items() if event in v]\n"
        "    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:\n"
        "        for line in maps:\n"
        "            span, mode = line.split()[:2]\n"
        "            first, last = (int(part, 16) for part in span.split('-'))\n"
        "            if 'r' in mode and last - first < 1 << 28 and 'vvar' not in line and 'vsyscall' not in line:\n"
        "                try:\n"
        "                    memory.seek(first)\n"
        "                    count = len(needle.findall(memory.read(last - first)))\n"
        "                except OSError: continue\n"
        "                if count: found.append(line)\n"
        "    return found\n"
    )
    uids = set()
    for _ in range(3):
        known = {process.pid for process in house.processes("sandbox")}
        house.deploy("leaves", leave, env={"CANARY": "canary-in-env-of-" + "the-first"})
        assert house.call("leaves") == "canary-in-env-of-the-first"
        uids |= {process.uid for process in house.processes("sandbox") if process.pid not in known}
        house.daemon.remove("leaves")
    house.settle()
    found, reused = [], 0
    for number in range(4):
        house.deploy(f"looks-{number}", look, timeout_s=10)
        found += house.call(f"looks-{number}", "canary-in-env")
        reused += sum(process.uid in uids for process in house.processes("sandbox"))
        assert "canary" not in str(house.daemon.logs(f"looks-{number}"))
    happened(f"4 sandboxes looked, {reused} uses of an old uid; {len(found)} traces found")
    assert found == []


STEAL = """
    import array, socket, sys
    native = sys.modules["zygote._native"]
    original = native.serve
    STOLEN = []
    def serve(control):
        wire = socket.socket(fileno=os.dup(control))
        data, rights, *_ = wire.recvmsg(65536, 1024, socket.MSG_PEEK)
        wire.close()
        fds = array.array("i")
        for _, _, payload in rights:
            fds.frombytes(payload)
        for fd in fds:
            for text in (b"1", b"2", b"0", b"3", b"4", b"5"):
                if outcome(lambda: os.stat(fd)) == "ok" and os.readlink(f"/proc/self/fd/{fd}").find("cgroup") >= 0:
                    STOLEN.append([os.readlink(f"/proc/self/fd/{fd}"), outcome(lambda: os.write(fd, text))])
        native.serve = original
        return original(control)
    native.serve = serve
"""


@case(
    "B13",
    "a Zygote's package steals its children's descriptors to move farm init into a cgroup that is killed",
    expect="there is no such descriptor; nobody is moved",
)
def test_a_package_cannot_move_processes_between_cgroups(house: PrivateWorker, happened: Happened) -> None:
    def homes() -> dict[int, str]:
        kinds = house.processes("init", "root zygote", "launcher")
        return {each.pid: Path(f"/proc/{each.pid}/cgroup").read_text() for each in kinds}

    before = homes()
    head = f"from __future__ import annotations\nimport os\n{WORTH_A_ZYGOTE}from thief_prelude import *\n"
    code = f"{head}STOLEN = []\nif os.getpid() != 1:{STEAL}"
    package = wheel("thief", "1.0", {"thief.py": code, "thief_prelude.py": PRELUDE})
    user = "import thief, os\ndef f(event): return [thief.STOLEN, os.getpid()]\n"
    house.deploy("teaches", user, requirements=["thief"], wheels=[package])
    house.call("teaches")
    house.daemon.when(lambda: house.daemon.node("thief==1.0"))
    house.deploy("tells", user, requirements=["thief"], timeout_s=10)
    stolen, _ = house.call("tells")
    happened(
        f"{len(stolen)} cgroup files came by: {stolen[:2]}; farm init, root Zygote and launcher are where they were"
    )
    assert stolen == []
    assert homes() == before
    house.daemon.remove("tells")
    house.settle()
    assert homes() == before


LIES = {
    "its own pidfd": "os.pidfd_open(os.getpid())",
    "farm init's pidfd": "os.pidfd_open(1)",
    "the root Zygote's pidfd": "os.pidfd_open(2)",
    "a file": "os.open('/dev/null', os.O_RDONLY)",
    "no descriptor": "None",
}


@case(
    "B14",
    "a Zygote's package answers for children that it has not forked, with pidfds of others",
    expect="no answer is lost, nobody is harmed",
)
@pytest.mark.parametrize("lie", LIES)
def test_a_zygote_that_lies_about_its_children_harms_nobody(house: PrivateWorker, happened: Happened, lie: str) -> None:
    name = "liar-" + lie.lower().replace(" ", "-").replace("'", "")
    module = name.replace("-", "_")
    code = (
        f"import os\n{WORTH_A_ZYGOTE}"
        "if os.getpid() != 1:\n"
        "    import array, json, socket, struct, sys\n"
        "    native = sys.modules['zygote._native']\n"
        "    def serve(control):\n"
        "        wire = socket.socket(fileno=os.dup(control))\n"
        "        while True:\n"
        "            data, rights, *_ = wire.recvmsg(65536, 1024)\n"
        "            if not data: os._exit(0)\n"
        "            number = struct.unpack_from('<Q', data, 16)[0]\n"
        f"            fd = {LIES[lie]}\n"
        "            beside = [] if fd is None else [(1, 1, array.array('i', [fd]))]\n"
        "            wire.sendmsg([json.dumps(dict(op='forked', id=number, pid=1)).encode()], beside)\n"
        "    native.serve = serve\n"
    )
    known = {each.pid for each in house.processes("init", "root zygote", "launcher")}
    house.index.add(wheel(name, "1.0", {f"{module}.py": code}))
    answers = []
    with house.watching() as watch:
        for number in range(3):
            code = f"import {module}\ndef f(event): return event\n"
            house.deploy(f"uses-{number}", code, requirements=[name], timeout_s=8)
            answers.append(house.invoke(f"uses-{number}", number).status)
    refused = house.daemon.when(
        lambda: [each["reason"] for each in house.daemon.tree()["refused"] if each["package"] == f"{name}==1.0"]
    )
    happened(f"{lie}: answers {answers}, {refused[0][:60]}; {watch}")
    assert answers == [200] * 3 and watch.wrong == []
    assert known == {each.pid for each in house.processes("init", "root zygote", "launcher")}


@case(
    "B15",
    "a Zygote's package uses the capabilities of its own user namespace on what is the host's or another's",
    expect="EPERM, EACCES or EINVAL; nothing changes",
)
def test_a_zygotes_capabilities_end_at_its_user_namespace(house: PrivateWorker, happened: Happened) -> None:
    def overreach(event: Any) -> Any:
        import fcntl
        import resource

        others = [f"/tmp/{name}" for name in os.listdir("/tmp") if f"/tmp/{name}" != os.environ["TMPDIR"]]
        up = struct.pack("16sh14s", b"lo", 0, bytes(14))

        def set_flags() -> None:
            with socket.socket() as sock:
                fcntl.ioctl(sock, 0x8914, up)

        def bind(port: int) -> None:
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", port))

        def write(path: str, text: str) -> None:
            with open(path, "w") as file:
                file.write(text)

        tried = {
            "sethostname": outcome(socket.sethostname, "taken"),
            "take lo down": outcome(set_flags),
            "bind port 81": outcome(bind, 81),
            "setuid out of the block": outcome(os.setuid, 0x7FFFFFF0),
            "setgid out of the block": outcome(os.setgid, 0x7FFFFFF0),
            "chown to the root outside": outcome(os.chown, os.environ["TMPDIR"], 0x7FFFFFF0, 0),
            "chmod /tmp": outcome(os.chmod, "/tmp", 0o777),
            "chown /tmp": outcome(os.chown, "/tmp", 0, 0),
            "mkdir /tmp/x": outcome(os.mkdir, "/tmp/x"),
            "nice -20": outcome(os.setpriority, os.PRIO_PROCESS, 0, -20),
            "real time": outcome(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
            "more locked memory": outcome(resource.setrlimit, resource.RLIMIT_MEMLOCK, (1 << 40, 1 << 40)),
            "a larger core": outcome(resource.setrlimit, resource.RLIMIT_CORE, (1 << 40, 1 << 40)),
            "oom_score_adj": outcome(write, "/proc/self/oom_score_adj", "-1000"),
            "setgroups out of the block": outcome(os.setgroups, [0x7FFFFFF0]),
            "uid_map again": outcome(write, "/proc/self/uid_map", "0 0 4294967295"),
            "core_pattern": outcome(write, "/proc/sys/kernel/core_pattern", "|/tmp/x"),
            "drop_caches": outcome(write, "/proc/sys/vm/drop_caches", "1"),
            "sysrq": outcome(write, "/proc/sysrq-trigger", "b"),
            "trusted xattr": outcome(os.setxattr, os.environ["TMPDIR"], "trusted.x", b"1"),
            "file capability": outcome(os.setxattr, "/usr/bin/env", "security.capability", bytes(20)),
        }
        for other in others:
            tried[f"list {other}"] = outcome(os.listdir, other)
            tried[f"write {other}"] = outcome(write, f"{other}/planted.py", "")
        return tried

    tried = in_zygote(house, overreach)
    bad = {name: answer for name, answer in tried.items() if answer == "ok"}
    happened(f"{len(tried)} tries: {', '.join(sorted(set(tried.values())))}; {len(bad)} went through {bad or ''}")
    assert not bad


@case(
    "B16",
    "a Zygote's package leaves a process behind that floods the daemon with answers",
    expect="the Zygote is ended; the daemon spends no time on it, the neighbour is served",
)
def test_a_zygote_that_floods_its_wire_is_ended(house: PrivateWorker, happened: Happened) -> None:
    def cpu_seconds() -> float:
        fields = Path(f"/proc/{house.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    code = (
        f"import json, os, socket\n{WORTH_A_ZYGOTE}"
        "if os.getpid() != 1 and os.fork() == 0:\n"
        "    wire = socket.socket(fileno=os.dup(3))\n"
        "    data = json.dumps({'op': 'forked', 'id': 10**9, 'pad': 'x' * 60000}).encode()\n"
        "    while True: wire.send(data)\n"
    )
    user = "import floods\ndef f(event): return event\n"
    mark = house.daemon.mark
    house.deploy("teaches", user, requirements=["floods"], wheels=[wheel("floods", "1.0", {"floods.py": code})])
    with house.watching() as watch:
        assert house.call("teaches", 1) == 1
        house.daemon.wait_line(r"floods-1\.0.*(failed|ended|not cacheable)", since=mark)
        before = cpu_seconds()
        house.deploy("after", user, requirements=["floods"], timeout_s=8)
        answers = [house.invoke("after", number).status for number in range(100)]
        spent = cpu_seconds() - before
    reasons = [each["reason"] for each in house.daemon.tree()["refused"] if each["package"] == "floods==1.0"]
    happened(f"ended ({(reasons or ['not refused'])[0][:60]}); 100 calls took {spent:.2f} s of the daemon; {watch}")
    assert answers == [200] * 100 and watch.wrong == []
    assert not [each for each in house.processes("zygote") if "floods" in Path(f"/proc/{each.pid}/maps").read_text()]


FILLS = {
    "bytes": "with open(base + '/fill', 'wb', buffering=0) as file:\n            while True: file.write(bytes(1 << 20))",
    "files": "number = 0\n        while True: number += 1; os.close(os.open(f'{base}/{number}', os.O_CREAT | os.O_WRONLY))",
}


@case(
    "B17",
    "a Zygote's package fills the scratch directory, with bytes or with names",
    expect="it is ended for it; other packages can write in theirs, the neighbour is served",
    default=False,
)
@pytest.mark.parametrize("fill", FILLS)
def test_a_zygote_cannot_fill_the_scratch_of_others(house: PrivateWorker, happened: Happened, fill: str) -> None:
    evil = (
        f"import os\n{WORTH_A_ZYGOTE}"
        "if os.getpid() != 1:\n"
        "    base = os.environ['TMPDIR']\n"
        "    try:\n"
        f"        {FILLS[fill]}\n"
        "    except OSError as error:\n"
        "        pass\n"
    )
    good = (
        f"import os, tempfile\n{WORTH_A_ZYGOTE}WROTE = 0\n"
        "if os.getpid() != 1:\n"
        "    with tempfile.NamedTemporaryFile() as file: WROTE = file.write(bytes(1 << 20))\n"
    )
    mark = house.daemon.mark
    name = f"fills-{fill}"
    module = name.replace("-", "_")
    house.deploy(
        "filler",
        f"import {module}\ndef f(event): return 1\n",
        requirements=[name],
        wheels=[wheel(name, "1.0", {f"{module}.py": evil})],
    )
    with house.watching() as watch:
        assert house.call("filler") == 1
        line = house.daemon.wait_line(rf"{name}-1\.0.*(not cacheable|serves).*", since=mark)[0]
        user = f"import writes_{fill}\ndef f(event): return writes_{fill}.WROTE\n"
        package = wheel(f"writes-{fill}", "1.0", {f"writes_{fill}.py": good})
        house.deploy("writer", user, requirements=[f"writes-{fill}"], wheels=[package])
        assert house.call("writer") == 0
        house.daemon.when(lambda: house.daemon.node(f"writes-{fill}==1.0"))
        house.deploy("writer-2", user, requirements=[f"writes-{fill}"])
        wrote = house.call("writer-2")
    slowest = max(watch.ms)
    happened(f"{fill}: {line[:110]}; another package wrote {wrote} bytes; {watch}, slowest {slowest:.0f} ms")
    assert wrote == 1 << 20 and watch.wrong == []


@case(
    "B18",
    "a function says that it has imported modules of a shared package which that has not",
    expect="no Zygote imports what the package does not bring; other functions lose nothing",
)
def test_a_function_cannot_have_a_zygote_import_something_else(house: PrivateWorker, happened: Happened) -> None:
    shared = wheel("shared-by-two", "1.0", {"shared_by_two.py": f"{WORTH_A_ZYGOTE}import sys\n"})
    honest = "import shared_by_two, sys\ndef f(event): return [name for name in event if name in sys.modules]\n"
    strange = ["antigravity", "this", "idlelib.idle", "turtledemo", "test.autotest"]
    lies = (
        "import json, os, struct, shared_by_two\n"
        "def f(event):\n"
        "    key = shared_by_two.__file__.split('/')[2]\n"
        "    body = json.dumps([[key, name, 1.0] for name in ['shared_by_two', *event]]).encode()\n"
        "    os.write(3, struct.pack('<IBBHQ', len(body), 7, 0, 0, 0) + body)\n"
    )
    house.deploy("liar", lies, requirements=["shared-by-two"], wheels=[shared])
    answer = house.invoke("liar", strange)
    node = house.daemon.when(lambda: house.daemon.node("shared-by-two==1.0"))
    house.deploy("honest", honest, requirements=["shared-by-two"])
    found = house.call("honest", strange)
    happened(
        f"the liar: {answer.status} {answer.error}; its package has a Zygote ({node['modules']} modules); {found} came along"
    )
    assert found == []
