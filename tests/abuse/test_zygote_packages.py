"""Group B: a package in a Zygote, against the Zygotes and sandboxes of others, their cgroups, and the daemon."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.attack import PRELUDE, WORTH_A_ZYGOTE, in_zygote
from tests.abuse.prelude import (
    outcome,
)
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

STEAL = """
def steal(stolen):
    import array, socket, sys
    native = sys.modules["sockd_zygote._native"]
    original = native.serve
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
                    stolen.append([os.readlink(f"/proc/self/fd/{fd}"), outcome(lambda: os.write(fd, text))])
        native.serve = original
        return original(control)
    if os.getpid() != 1:
        native.serve = serve
    return lambda: stolen
STOLEN = steal([])
"""
"""What it has stolen is in a closure, which fingerprints do not describe: a Zygote that differs serves nobody."""


@case(
    "B13",
    "a Zygote's package steals its children's descriptors to move farm init into a cgroup that is killed",
    expect="there is no such descriptor; nobody is moved",
)
def test_a_package_cannot_move_processes_between_cgroups(worker: PrivateWorker, happened: Happened) -> None:
    def homes() -> dict[int, str]:
        kinds = worker.processes("init", "root zygote", "launcher")
        return {each.pid: Path(f"/proc/{each.pid}/cgroup").read_text() for each in kinds}

    before = homes()
    head = f"from __future__ import annotations\nimport os\n{WORTH_A_ZYGOTE}from thief_prelude import *\n"
    code = f"{head}{STEAL}"
    package = wheel("thief", "1.0", {"thief.py": code, "thief_prelude.py": PRELUDE})
    user = "import thief\ndef f(event): return thief.STOLEN()\n"
    worker.deploy("tells", user, requirements=["thief"], wheels=[package], timeout_s=10)
    worker.call("tells")
    stolen = worker.call_learned("tells")
    happened(
        f"{len(stolen)} cgroup files came by: {stolen[:2]}; farm init, root Zygote and launcher are where they were"
    )
    assert stolen == []
    assert homes() == before
    worker.daemon.remove("tells")
    worker.settle()
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
def test_a_zygote_that_lies_about_its_children_harms_no_one(
    worker: PrivateWorker, happened: Happened, lie: str
) -> None:
    name = "liar-" + lie.lower().replace(" ", "-").replace("'", "")
    module = name.replace("-", "_")
    code = (
        f"import os\n{WORTH_A_ZYGOTE}"
        "if os.getpid() != 1:\n"
        "    import array, json, socket, struct, sys\n"
        "    native = sys.modules['sockd_zygote._native']\n"
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
    known = {each.pid for each in worker.processes("init", "root zygote", "launcher")}
    worker.index.add(wheel(name, "1.0", {f"{module}.py": code}))
    answers = []
    with worker.watching() as watch:
        for number in range(3):
            code = f"import {module}\ndef f(event): return event\n"
            worker.deploy(f"uses-{number}", code, requirements=[name], timeout_s=30)
            answers.append(worker.invoke(f"uses-{number}", number).status)
    refused = worker.daemon.when(
        lambda: [each["reason"] for each in worker.daemon.tree()["refused"] if each["package"] == f"{name}==1.0"]
    )
    happened(f"{lie}: answers {answers}, {refused[0][:60]}; {watch}")
    assert answers == [200] * 3 and watch.wrong == []
    assert known == {each.pid for each in worker.processes("init", "root zygote", "launcher")}


@case(
    "B15",
    "a Zygote's package uses the capabilities of its own user namespace on what is the host's or another's",
    expect="EPERM, EACCES or EINVAL; nothing changes",
)
def test_a_zygotes_capabilities_end_at_its_user_namespace(worker: PrivateWorker, happened: Happened) -> None:
    def overreach(event: Any) -> Any:
        import fcntl
        import resource

        others = [f"/tmp/{name}" for name in os.listdir("/tmp")]
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
            "chown to the root outside": outcome(os.chown, "/tmp", 0x7FFFFFF0, 0),
            "chmod /tmp": outcome(os.chmod, "/tmp", 0o777),
            "chown /tmp": outcome(os.chown, "/tmp", 0, 0),
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
            "trusted xattr": outcome(os.setxattr, "/tmp", "trusted.x", b"1"),
            "file capability": outcome(os.setxattr, "/usr/bin/env", "security.capability", bytes(20)),
        }
        for other in others:
            tried[f"list {other}"] = outcome(os.listdir, other)
            tried[f"write {other}"] = outcome(write, f"{other}/planted.py", "")
        return tried

    tried = in_zygote(worker, overreach)
    bad = {name: answer for name, answer in tried.items() if answer == "ok"}
    happened(f"{len(tried)} tries: {', '.join(sorted(set(tried.values())))}; {len(bad)} went through {bad or ''}")
    assert not bad


@case(
    "B16",
    "a Zygote's package leaves a process behind that floods the daemon with answers",
    expect="the Zygote is ended; the daemon spends no time on it, the neighbour is served",
)
def test_a_zygote_that_floods_its_wire_is_ended(worker: PrivateWorker, happened: Happened) -> None:
    def cpu_seconds() -> float:
        fields = Path(f"/proc/{worker.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    code = (
        f"import json, os, socket\n{WORTH_A_ZYGOTE}"
        "if os.getpid() != 1 and os.fork() == 0:\n"
        "    wire = socket.socket(fileno=os.dup(3))\n"
        "    data = json.dumps({'op': 'forked', 'id': 10**9, 'pad': 'x' * 60000}).encode()\n"
        "    while True: wire.send(data)\n"
    )
    user = "import floods\ndef f(event): return event\n"
    mark = worker.daemon.mark
    worker.deploy("teaches", user, requirements=["floods"], wheels=[wheel("floods", "1.0", {"floods.py": code})])
    with worker.watching() as watch:
        assert worker.call("teaches", 1) == 1
        worker.daemon.wait_line(r"floods-1\.0.*(failed|ended|not imported ahead)", since=mark)
        before = cpu_seconds()
        worker.deploy("after", user, requirements=["floods"], timeout_s=30)
        answers = [worker.invoke("after", number).status for number in range(100)]
        spent = cpu_seconds() - before
    reasons = [each["reason"] for each in worker.daemon.tree()["refused"] if each["package"] == "floods==1.0"]
    happened(f"ended ({(reasons or ['not refused'])[0][:60]}); 100 calls took {spent:.2f} s of the daemon; {watch}")
    assert answers == [200] * 100 and watch.wrong == []
    assert not [each for each in worker.processes("zygote") if "floods" in Path(f"/proc/{each.pid}/maps").read_text()]


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
def test_a_zygote_cannot_fill_the_scratch_of_others(worker: PrivateWorker, happened: Happened, fill: str) -> None:
    evil = (
        f"import os\n{WORTH_A_ZYGOTE}"
        "if os.getpid() != 1:\n"
        "    base = '/tmp'\n"
        "    try:\n"
        f"        {FILLS[fill]}\n"
        "    except OSError as error:\n"
        "        pass\n"
    )
    good = (
        f"import os, tempfile\n{WORTH_A_ZYGOTE}"
        "def write():\n"
        "    with tempfile.NamedTemporaryFile() as file: wrote = os.getpid() != 1 and file.write(bytes(1 << 20))\n"
        "    return lambda: wrote\n"
        "wrote = write()\n"
    )
    mark = worker.daemon.mark
    name = f"fills-{fill}"
    module = name.replace("-", "_")
    worker.deploy(
        "filler",
        f"import {module}\ndef f(event): return 1\n",
        requirements=[name],
        wheels=[wheel(name, "1.0", {f"{module}.py": evil})],
    )
    with worker.watching() as watch:
        assert worker.call("filler") == 1
        line = worker.daemon.wait_line(rf"{name}-1\.0.*(not imported ahead|serves).*", since=mark)[0]
        user = f"import writes_{fill}\ndef f(event): return writes_{fill}.wrote()\n"
        package = wheel(f"writes-{fill}", "1.0", {f"writes_{fill}.py": good})
        worker.deploy("writer", user, requirements=[f"writes-{fill}"], wheels=[package])
        assert worker.call("writer") is False
        wrote = worker.call_learned("writer")
    slowest = max(watch.ms)
    happened(f"{fill}: {line[:110]}; another package wrote {wrote} bytes; {watch}, slowest {slowest:.0f} ms")
    assert wrote == 1 << 20 and watch.wrong == []


@case(
    "B18",
    "a function says that it has imported modules of a shared package which that has not",
    expect="no Zygote imports what the package does not bring; other functions lose nothing",
)
def test_a_function_cannot_have_a_zygote_import_something_else(worker: PrivateWorker, happened: Happened) -> None:
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
    worker.deploy("liar", lies, requirements=["shared-by-two"], wheels=[shared])
    answer = worker.invoke("liar", strange)
    node = worker.daemon.when(lambda: worker.daemon.node("shared-by-two==1.0"))
    worker.deploy("honest", honest, requirements=["shared-by-two"])
    found = worker.call("honest", strange)
    assert worker.call_learned("honest", strange) == found
    happened(
        f"the liar: {answer.status} {answer.error}; its package has a Zygote ({node['modules']} modules); {found} came along"
    )
    assert found == []
