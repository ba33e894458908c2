"""Zygotes on the real kernel: nested, refused, killed; what they may reach, and what their forks share and must not."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sockd.errors import NoCapacity, OutOfMemory
from sockd.kernel import pidfds
from sockd.kernel.mounts import owned
from sockd.kernel.pidfds import wait_exited
from sockd.sandbox.control import ZygoteGone, ZygoteRefused
from sockd.sandbox.uids import CHILDREN
from sockd.sandbox.zygote import MAX_TASKS, Zygote
from tests.support.house import MB, House, namespaces_of, status_of, tells_exit_status, uids_in_use
from zygote import protocol

pytestmark = pytest.mark.root

HANDLER = "def handler(event): return event\n"


def pid_of(zygote: Zygote) -> int:
    """Its process, as the host sees it."""
    if zygote.pidfd >= 0:
        return pidfds.pid(zygote.pidfd)
    assert zygote.cgroup is not None  # a root, which has none: farm init exec'd it
    ours = namespaces_of("self")["user"]  # its children have others, and may not have left for their own cgroups yet
    (pid,) = (pid for pid in zygote.cgroup.pids() if namespaces_of(pid)["user"] == ours)
    return pid


def test_zygotes_nest_three_deep_and_their_forks_have_all_that_was_imported(house: House) -> None:
    for name in "abc":
        house.add_package(name, {f"package_{name}.py": f"value = {name!r}\n"})

    def look(event: Any) -> Any:
        import os
        import sys

        return [name for name in ("package_a", "package_b", "package_c") if name in sys.modules], os.getuid()

    zygotes = [house.root]
    for depth, name in enumerate("abc"):
        zygotes.append(house.spawn(zygotes[-1], [f"package_{name}"]))
        pid = pid_of(zygotes[-1])
        block = zygotes[-1].uids
        assert set(status_of(pid)["Uid"].split()) == {str(block.absolute)}, depth
        parents_view = ["0", str(block.first), str(block.count)]
        map_of = Path(f"/proc/{pid}/uid_map").read_text().split()
        assert map_of == ["0", str(block.absolute), str(block.count)], (map_of, parents_view)
    uids = set()
    for depth, zygote in enumerate(zygotes):
        running = house.start(look, zygote=zygote)
        assert running.answer() == [[f"package_{name}" for name in "abc"[:depth]], 1000]
        (uid,) = set(status_of(running.pid)["Uid"].split())
        assert zygote.uids.absolute < int(uid) < zygote.uids.absolute + zygote.uids.count
        uids.add(uid)
    assert len(uids) == 4


def test_too_deep_a_tree_is_refused_and_nothing_is_lost(house: House) -> None:
    zygotes = [house.root]
    while zygotes[-1].uids.count // 2 // CHILDREN >= 64:
        zygotes.append(house.spawn(zygotes[-1]))
    with pytest.raises(NoCapacity, match="too deep"):
        house.spawn(zygotes[-1])
    assert len(zygotes) >= 3
    assert house.answer(HANDLER, 5, zygote=zygotes[-1]) == 5


FAILING = {
    "raise ValueError('at import')": "ValueError: at import",
    "raise SystemExit(3)": "SystemExit: 3",
    "import sys; sys.exit('no')": "SystemExit: no",
    "raise KeyboardInterrupt": "KeyboardInterrupt: ",
    "import nowhere": "ModuleNotFoundError: No module named 'nowhere'",
    "def broken(:": "SyntaxError: ",
    "f = lambda: f(); f()": "RecursionError: ",
}


@pytest.mark.parametrize("statement", FAILING)
def test_a_module_that_cannot_be_imported_is_named_and_the_others_serve(house: House, statement: str) -> None:
    house.add_package("p", {"failing.py": f"{statement}\n", "good.py": "x = 1\n"})
    zygote = house.spawn()
    imported = house.import_modules(zygote, ["failing", "good"])
    assert list(imported.failed) == ["failing"]
    assert imported.failed["failing"].startswith(FAILING[statement])
    assert imported.threads == 1
    assert house.answer("import sys\ndef handler(event): return 'good' in sys.modules\n", zygote=zygote) is True


FATAL = {
    "os._exit": "import os; os._exit(0)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "its own wire closed": "import os; os.close(3)",
    "garbage on its wire": "import os; os.write(3, b'garbage')",
    "an empty message": "import os; os.write(3, b'{}')",
    "an answer of the wrong kind": """import os; os.write(3, b'{"op":"forked","id":1}')""",
    "a lie about what was imported": """import os; os.write(3, b'{"op":"imported","id":1,"seconds":"x"}')""",
    "numbers out of range": """import os; os.write(3, b'{"op":"imported","id":1,"seconds":1e999,"threads":1e999,"failed":{}}')""",
    "too much memory": "kept = [bytearray(1 << 20) for _ in range(2000)]",
}


@pytest.mark.parametrize("what", FATAL)
def test_a_module_that_kills_its_zygote_kills_nobody_else(house: House, what: str) -> None:
    house.add_package("p", {"fatal.py": f"{FATAL[what]}\n"})
    parent = house.spawn()
    sibling = house.start(HANDLER, zygote=parent)
    assert sibling.answer(1) == 1
    zygote = house.spawn(parent)
    with pytest.raises(ZygoteGone):
        house.import_modules(zygote, ["fatal"])
    house.call(zygote.close)
    assert sibling.answer(2) == 2
    assert house.answer(HANDLER, 3, zygote=parent) == 3


def test_a_module_that_hangs_is_given_up_at_the_deadline(house: House) -> None:
    house.add_package("p", {"hanging.py": "import signal\nsignal.pthread_sigmask(0, range(1, 65))\nwhile True: pass\n"})
    zygote = house.spawn()
    pid = pid_of(zygote)
    with pytest.raises(ZygoteGone), Deadline(5.0):  # half of what it would have without one of its own
        house.import_modules(zygote, ["hanging"], deadline_s=0.2)
    assert not zygote.alive
    house.settle()
    assert not Path(f"/proc/{pid}").exists()
    assert zygote.name in house.ended


class Deadline:
    """Asserts that what happens within took no longer."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *error: object) -> None:
        assert time.monotonic() - self._started < self._limit_s


def test_a_module_that_starts_threads_is_told_of(house: House) -> None:
    house.add_package(
        "p", {"threaded.py": "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"}
    )
    assert house.import_modules(house.spawn(), ["threaded"]).threads == 2


def test_a_fork_bomb_in_a_zygote_meets_a_limit_and_leaves_nothing(house: House) -> None:
    source = "import os, signal\ncount = 0\ntry:\n    while os.fork(): count += 1\n    signal.pause()\nexcept OSError: pass\n"
    house.add_package("p", {"bomb.py": source})
    zygote = house.spawn()
    assert not house.import_modules(zygote, ["bomb"]).failed
    assert zygote.cgroup is not None
    assert len(zygote.cgroup.pids()) == MAX_TASKS


def test_a_zygotes_memory_is_limited(house: House) -> None:
    source = "def handler(event):\n    kept = [bytearray(1 << 20) for _ in range(200)]\n"
    error = house.reply(source, memory_bytes=32 * MB, zygote=house.spawn()).error
    assert isinstance(error, OutOfMemory)  # its sandboxes' is their own


@pytest.mark.parametrize("which", ["root", "node"])
def test_how_a_sandbox_ended_is_known_from_any_zygote(house: House, which: str) -> None:
    """The kernel reaps for Zygotes of every level: a zombie would keep its exit status, and its place, to itself."""
    zygote = house.root if which == "root" else house.spawn()
    error = house.start("import os\ndef handler(event):\n    os._exit(event)\n", zygote=zygote).request(5).error
    reason = "with error: exit status 5" if tells_exit_status() else "without providing a reason"
    assert error is not None and error.message == f"Runtime exited {reason}"


@pytest.mark.parametrize("which", ["root", "node"])
def test_a_killed_zygote_leaves_its_sandboxes_serving(house: House, which: str) -> None:
    root = house.run(house.new_root())
    try:
        zygote = root if which == "root" else house.spawn(root)
        child = house.spawn(zygote)
        sandboxes = [house.start(HANDLER, zygote=zygote), house.start(HANDLER, zygote=child)]
        assert [running.answer(1) for running in sandboxes] == [1, 1]
        ending = house.start("import os\ndef handler(event):\n    os._exit(event)\n", zygote=zygote)
        os.kill(pid_of(zygote), signal.SIGKILL)
        house.run(until(lambda: zygote.name in house.ended))
        assert [running.answer(2) for running in sandboxes] == [2, 2]
        assert house.answer(HANDLER, 3, zygote=child) == 3
        error = ending.request(5).error
        reason = "with error: exit status 5" if tells_exit_status() else "without providing a reason"
        assert error is not None and error.message == f"Runtime exited {reason}"
        with pytest.raises(ZygoteGone):
            house.start(HANDLER, zygote=zygote)
        for running in sandboxes:
            running.destroy()
        house.settle()
        assert uids_in_use(zygote) == uids_in_use(child) == 0
        assert house.ended.count("farm") == 0
    finally:
        house.call(root.close)


async def until(condition: Any) -> None:
    """Let the loop run until something that it does has happened."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def test_a_block_of_uids_comes_back_when_its_last_sandbox_has_gone(house: House) -> None:
    zygote = house.spawn()
    block = zygote.uids
    running = house.start(HANDLER, zygote=zygote)
    running.answer()
    house.call(zygote.close)
    other = house.spawn()
    assert other.uids.absolute != block.absolute
    assert running.answer(1) == 1
    running.destroy()
    house.settle()
    assert house.spawn().uids.absolute in (block.absolute, other.uids.absolute)


def test_a_request_that_cannot_be_understood_is_refused_and_the_zygote_lives(house: House) -> None:
    zygote = house.spawn()
    with pytest.raises(ZygoteRefused, match="KeyError"):
        house.run(zygote._request("nonsense", (), deadline_s=5))
    with pytest.raises(ZygoteRefused, match="limit"):
        house.run(zygote.import_modules([], ["m" * 1000] * 1000, deadline_s=5))
    assert zygote.in_flight == 0
    assert house.answer(HANDLER, 1, zygote=zygote) == 1


def test_what_a_package_can_reach_while_it_is_imported(house: House) -> None:
    marker = Path("/root") / f"zygote-marker-{os.getpid()}"
    source = f"""
    import ctypes, errno, os, socket
    libc = ctypes.CDLL(None, use_errno=True)
    facts = {{"uid": os.getuid(), "root": sorted(os.listdir("/")), "tmp": os.listdir("/tmp"), "home": os.environ["HOME"]}}
    facts["fds"] = sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{{name}}"))
    facts["pids"] = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    facts["me"] = os.getpid()
    facts["marker"] = [up for up in ("", "../" * 20, "/proc/1/root", "/proc/1/cwd/" + "../" * 20)
                       if os.path.exists(up + {str(marker)!r})]
    def refused(name, call):
        ctypes.set_errno(0)
        facts[name] = call() == -1 and ctypes.get_errno()
    refused("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    refused("unshare", lambda: libc.unshare(0x10000000))
    refused("setns", lambda: libc.setns(0, 0))
    refused("ptrace", lambda: libc.ptrace(16, 1, 0, 0))
    refused("bpf", lambda: libc.syscall(321, 0, 0, 0))
    refused("keyctl", lambda: libc.syscall(250, 0, 0, 0))
    refused("io_uring", lambda: libc.syscall(425, 1, 0))
    def errno_of(call):
        try: call()
        except OSError as error: return error.errno
    facts["kill"] = [errno_of(lambda pid=pid: os.kill(pid, 0)) for pid in (1, -1)]
    facts["writes"] = [errno_of(lambda name=name: os.open(name + "/x", os.O_CREAT | os.O_WRONLY))
                       for name in ("/", "/tmp", "/usr", "/packages", "/var/task", "/etc", "/dev")]
    facts["raw"] = errno_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
    facts["netlink"] = errno_of(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
    open(os.environ["TMPDIR"] + "/mine", "w").write("x")
    """
    other = house.spawn()
    running = house.start(HANDLER)
    running.answer()
    house.add_package("p", {"nosy.py": source})
    marker.write_text("host's own")
    try:
        zygote = house.spawn(modules=["nosy"])
    finally:
        marker.unlink()
    facts = house.answer("import nosy\ndef handler(event): return nosy.facts\n", zygote=zygote)
    assert facts["marker"] == []
    assert facts["uid"] == 0  # in a user namespace of its own
    assert facts["fds"] == ["0", "1", "2", "3", "4"]  # streams, wire, and /dev/null for the streams of its forks
    assert facts["home"] == f"/tmp/{zygote.name}"
    assert facts["pids"] == [facts["me"]]  # hidepid: others' processes are not there
    assert {name: facts[name] for name in ("mount", "unshare", "setns", "ptrace", "bpf", "keyctl")} == dict.fromkeys(
        ("mount", "unshare", "setns", "ptrace", "bpf", "keyctl"), 1
    )
    assert facts["io_uring"] in (1, 38)
    assert facts["kill"] == [1, None] or facts["kill"] == [1, 3] or facts["kill"] == [1, 1], facts["kill"]
    assert set(facts["writes"]) <= {13, 30}, facts["writes"]
    assert facts["raw"] == 1
    assert facts["netlink"] is not None
    assert other.alive


def test_a_zygotes_scratch_is_its_own_and_goes_with_it(house: House) -> None:
    house.add_package(
        "p",
        {
            "writes.py": "import os\nos.makedirs(os.environ['TMPDIR'] + '/a/b')\nopen(os.environ['TMPDIR'] + '/a/f', 'w')\n",
            "reads.py": "import os\nseen = []\nfor name in os.listdir('/tmp'):\n    try: seen += os.listdir(f'/tmp/{name}')\n"
            "    except OSError: pass\n",
        },
    )
    writer = house.spawn(modules=["writes"])
    reader = house.spawn(modules=["reads"])
    assert house.answer("import reads\ndef handler(event): return reads.seen\n", zygote=reader) == []
    fd = os.open(".", os.O_RDONLY, dir_fd=house.farm._scratch)
    try:
        assert writer.name in os.listdir(fd)
        house.call(writer.close)
        house.settle()
        assert writer.name not in os.listdir(fd)
    finally:
        os.close(fd)


RANDOMNESS = """
import hashlib, os, random, secrets, ssl, tempfile, uuid
import numpy.random
random.random(), uuid.uuid4(), numpy.random.rand(), tempfile.gettempdir()
generator = random.SystemRandom()
"""
NUMPY = (
    "import os\nstate = 1\ndef seed():\n    global state\n    state = os.urandom(8).hex()\ndef rand(): return state\n"
)


def test_randomness_differs_between_forks_of_one_zygote(house: House) -> None:
    house.add_package("p", {"uses_random.py": RANDOMNESS, "numpy/__init__.py": "", "numpy/random.py": NUMPY})

    def draw(event: Any) -> Any:
        import os
        import random
        import secrets
        import ssl
        import sys
        import tempfile
        import uuid

        name = os.path.basename(tempfile.mkdtemp())
        return {
            "random": random.random(),
            "uuid1": str(uuid.uuid1()),
            "uuid4": str(uuid.uuid4()),
            "urandom": os.urandom(8).hex(),
            "secrets": secrets.token_hex(8),
            "ssl": ssl.RAND_bytes(8).hex(),
            "numpy": sys.modules["numpy.random"].rand(),
            "system": sys.modules["uses_random"].generator.random(),
            "tempfile": name,
        }

    zygote = house.spawn(modules=["uses_random"])
    nested = house.spawn(zygote)
    drawn = [
        house.answer(draw, zygote=each, spare=spare) for each in (zygote, nested) for spare in (False, False, True)
    ]
    for kind in drawn[0]:
        assert len({draw[kind] for draw in drawn}) == len(drawn), kind


def test_nothing_of_a_function_is_ever_in_a_zygote(house: House) -> None:
    """Environment, code, event and answer of a function, searched for in the memory of all Zygotes above it."""
    canaries = {name: f"canary-{name}-{os.urandom(8).hex()}" for name in ("env", "code", "event", "answer")}
    house.add_package("p", {"some_package.py": "x = 1\n"})
    zygote = house.spawn(modules=["some_package"])
    source = f"import os\ndef handler(event):\n    return {canaries['code']!r} + os.environ['SECRET'] + event + 'an' + 'swer'\n"
    running = house.start(source, zygote=zygote, env={"SECRET": canaries["env"]})
    for _ in range(3):
        running.answer(canaries["event"])
    assert found_in(running.pid, canaries) == {"env", "code", "event"}  # the search finds what is there
    for each in (zygote, house.root):
        assert found_in(pid_of(each), canaries) == set()
        for name in ("environ", "cmdline"):
            text = Path(f"/proc/{pid_of(each)}/{name}").read_text()
            assert not any(canary in text for canary in canaries.values())


def found_in(pid: int, words: dict[str, str]) -> set[str]:
    """Which of these words are in the memory of a process."""
    found = set()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if not match or "[v" in line:
                continue
            start, end = (int(number, 16) for number in match.groups())
            memory.seek(start)
            data = memory.read(end - start)
            found |= {name for name, word in words.items() if word.encode() in data}
    return found


def test_only_farm_init_and_root_zygotes_have_a_capability_and_only_two(house: House) -> None:
    house.add_package("p", {"some_package.py": "x = 1\n"})
    zygote = house.spawn(modules=["some_package"])
    nested = house.spawn(zygote)
    busy = house.program("def handler(event):\n    while True: pass\n", timeout_s=0.4)
    sandboxes = [
        house.start(busy, zygote=each, spare=spare) for each in (house.root, zygote, nested) for spare in (False, True)
    ]
    sampled: list[dict[str, Any]] = []

    async def sample_while_busy() -> None:
        requests = [asyncio.create_task(running.send()) for running in sandboxes]
        for _ in range(20):
            await asyncio.sleep(0)
            sampled.extend(sample(house))
        await asyncio.wait(requests)

    house.run(sample_while_busy())
    initial = namespaces_of("self")["user"]
    powerful = {each["role"] for each in sampled if each["user"] == initial and each["capabilities"]}
    assert powerful == {"farm_init", "zygote"}
    for each in sampled:
        if each["user"] == initial:
            assert each["capabilities"] <= (1 << 6 | 1 << 7), each
            assert each["cgroup"] in ("farm", house.root.name, "sandbox-1") or not each["capabilities"], each
        if each["cgroup"] in imported_packages(zygote, nested, sandboxes):
            assert each["user"] != initial
            assert each["uid"] != 0
    assert len({each["pid"] for each in sampled}) >= 2 + 3 + len(sandboxes)


def imported_packages(zygote: Zygote, nested: Zygote, sandboxes: Any) -> set[str]:
    """Cgroups of everybody who may run code that is not ours."""
    cgroups = [zygote.cgroup, nested.cgroup, *(running.sandbox.cgroup for running in sandboxes)]
    return {cgroup.name for cgroup in cgroups if cgroup is not None}


def sample(house: House) -> list[dict[str, Any]]:
    """Every process of the farm: who it is, and what it may do."""
    seen = []
    for leaf in Path(house.tree.directories[0]).iterdir():
        if not leaf.is_dir():
            continue
        for pid in (leaf / "cgroup.procs").read_text().split():
            try:
                status = status_of(int(pid))
                command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                user = namespaces_of(int(pid))["user"]
            except (FileNotFoundError, ProcessLookupError):
                continue
            sets = [int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")]
            seen.append(
                {
                    "pid": int(pid),
                    "cgroup": leaf.name,
                    "user": user,
                    "uid": int(status["Uid"].split()[1]),
                    "capabilities": sets[0] | sets[1] | sets[2] | sets[3],
                    "role": "farm_init" if any("farm_init" in word for word in command) else "zygote",
                }
            )
    return seen


def test_a_child_that_cannot_join_its_cgroup_ends_and_says_why(house: House) -> None:
    """It must neither go on unconfined nor serve beside its Zygote: both read the same wire until it has left it."""
    program = house.program(HANDLER)

    async def fork_into_nothing() -> tuple[bytes, str]:
        cgroup = house.tree.cgroup("gone")
        with ExitStack() as stack:
            stack.callback(cgroup.close)
            fds = cgroup.procs_fds
            for top in house.tree.directories:
                os.rmdir(os.path.join(top, "gone"))
            root = house.assembly.create(program.limits, program)
            stack.callback(root.close)
            ours, theirs = (stack.enter_context(sock) for sock in socket.socketpair())
            _, writer = (stack.enter_context(owned(fd)) for fd in os.pipe())
            uid = house.root.take_uid()
            stack.callback(house.root.give_back_uid, uid)
            passed = (root.fd, theirs.fileno(), writer)
            pidfd = stack.enter_context(owned(await house.root.fork(uid, "host", False, passed, fds, deadline_s=5)))
            await wait_exited(pidfd, 5)
            ours.settimeout(0)
            return ours.recv(10_000), pidfds.describe_status(pidfds.exit_status(pidfd))

    frame, status = house.run(fork_into_nothing())
    assert frame[4] == protocol.FAILED
    assert b"joining its cgroups" in frame
    assert status in ("Runtime exited with error: exit status 1", "Runtime exited without providing a reason")
    for number in range(3):
        assert house.answer(HANDLER, number) == number
