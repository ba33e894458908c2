"""What Zygotes may reach and hold, and what they and their forks must not share."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from sockd.isolation.farm.zygote import Zygote
from tests.isolation.sandbox.zygotes import HANDLER, pid_of
from tests.support.harness import Harness, namespaces_of, status_of

pytestmark = pytest.mark.root


def test_what_a_package_can_reach_while_it_is_imported(harness: Harness) -> None:
    marker = Path("/root") / f"zygote-marker-{os.getpid()}"
    source = f"""
    import ctypes, errno, os, socket
    libc = ctypes.CDLL(None, use_errno=True)
    facts = {{"uid": os.getuid(), "root": sorted(os.listdir("/")), "tmp": os.listdir("/tmp"), "home": os.environ["HOME"]}}
    held = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{{name}}")]
    # libffi 3.8 keeps its own file open once ctypes is imported.
    facts["fds"] = [name for name in held if "/libffi.so" not in os.readlink(f"/proc/self/fd/{{name}}")]
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
                       for name in ("/", "/usr", "/packages", "/var/task", "/etc", "/dev")]
    facts["raw"] = errno_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
    facts["netlink"] = errno_of(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12))
    open("/tmp/mine", "w").write("x")
    """
    other = harness.spawn()
    running = harness.start(HANDLER)
    running.answer()
    harness.add_package("p", {"nosy.py": source})
    marker.write_text("host's own")
    try:
        zygote = harness.spawn(modules=["nosy"])
    finally:
        marker.unlink()
    facts = harness.answer("import nosy\ndef handler(event): return nosy.facts\n", zygote=zygote)
    assert facts["marker"] == []
    assert (facts["uid"], facts["home"], facts["tmp"]) == (1000, "/tmp", [])
    assert [int(fd) for fd in facts["fds"] if int(fd) < 48] == [0, 1, 2, 3]  # streams and wire
    assert len(facts["fds"]) == 7  # the memory file with what to import, both roots
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


RANDOMNESS = """
import hashlib, os, random, secrets, ssl, tempfile, uuid
import numpy.random
random.random(), uuid.uuid4(), numpy.random.rand(), tempfile.gettempdir()
generator = random.SystemRandom()
"""
NUMPY = (
    "import os\nstate = 1\ndef seed():\n    global state\n    state = os.urandom(8).hex()\ndef rand(): return state\n"
)


def test_randomness_differs_between_forks_of_one_zygote(harness: Harness) -> None:
    harness.add_package("p", {"uses_random.py": RANDOMNESS, "numpy/__init__.py": "", "numpy/random.py": NUMPY})

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

    zygote = harness.spawn(modules=["uses_random"])
    nested = harness.spawn(zygote)
    drawn = [
        harness.answer(draw, zygote=each, spare=spare) for each in (zygote, nested) for spare in (False, False, True)
    ]
    for kind in drawn[0]:
        assert len({draw[kind] for draw in drawn}) == len(drawn), kind


def test_nothing_of_a_function_is_ever_in_a_zygote(harness: Harness) -> None:
    """Environment, code, event and answer of a function, searched for in the memory of all Zygotes above it."""
    canaries = {name: f"canary-{name}-{os.urandom(8).hex()}" for name in ("env", "code", "event", "answer")}
    harness.add_package("p", {"some_package.py": "x = 1\n"})
    zygote = harness.spawn(modules=["some_package"])
    source = f"import os\ndef handler(event):\n    return {canaries['code']!r} + os.environ['SECRET'] + event + 'an' + 'swer'\n"
    running = harness.start(source, zygote=zygote, env={"SECRET": canaries["env"]})
    for _ in range(3):
        running.answer(canaries["event"])
    assert found_in(running.pid, canaries) == {"env", "code", "event"}  # the search finds what is there
    for each in (zygote, harness.root):
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


def test_only_farm_init_and_root_zygotes_have_a_capability_and_only_two(harness: Harness) -> None:
    harness.add_package("p", {"some_package.py": "x = 1\n"})
    zygote = harness.spawn(modules=["some_package"])
    nested = harness.spawn(zygote)
    busy = harness.program("def handler(event):\n    while True: pass\n", timeout_s=0.4)
    sandboxes = [
        harness.start(busy, zygote=each, spare=spare)
        for each in (harness.root, zygote, nested)
        for spare in (False, True)
    ]
    sampled: list[dict[str, Any]] = []

    async def sample_while_busy() -> None:
        requests = [asyncio.create_task(running.send()) for running in sandboxes]
        for _ in range(20):
            await asyncio.sleep(0)
            sampled.extend(sample(harness))
        await asyncio.wait(requests)

    harness.run(sample_while_busy())
    initial = namespaces_of("self")["user"]
    powerful = {each["role"] for each in sampled if each["user"] == initial and each["capabilities"]}
    assert powerful == {"farm_init", "zygote"}
    for each in sampled:
        if each["user"] == initial:
            assert each["capabilities"] <= (1 << 6 | 1 << 7), each
            assert each["cgroup"] in ("farm", harness.root.name, "sandbox-1") or not each["capabilities"], each
        if each["cgroup"] in imported_packages(zygote, nested, sandboxes):
            assert each["user"] != initial
            assert each["uid"] != 0
    assert len({each["pid"] for each in sampled}) >= 2 + 3 + len(sandboxes)


def imported_packages(zygote: Zygote, nested: Zygote, sandboxes: Any) -> set[str]:
    """Cgroups of everybody who may run code that is not ours."""
    cgroups = [zygote.cgroup, nested.cgroup, *(running.sandbox.process.cgroup for running in sandboxes)]
    return {cgroup.name for cgroup in cgroups if cgroup is not None}


def inhabitants(leaf: Path) -> list[str]:
    """Processes of a cgroup; none of one that the pool removes meanwhile: ENODEV, if its file was open by then."""
    try:
        return (leaf / "cgroup.procs").read_text().split()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
        return []


def sample(harness: Harness) -> list[dict[str, Any]]:
    """Every process of the farm: who it is, and what it may do."""
    seen = []
    for leaf in Path(harness.tree.directories[0]).iterdir():
        if not leaf.is_dir():
            continue
        for pid in inhabitants(leaf):
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
