"""Root Zygotes of interpreters that are not the worker's own: what they may reach, how they end, and what is left of them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sockd.base.errors import ImageUnavailable, SandboxFailed
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.farm import Farm
from sockd.isolation.farm.imported import ImportRequest
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.image_tree import ImageTree
from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter
from sockd.isolation.sandbox.foreign_farms import NoInterpreter
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.linux.processes import pidfds
from tests.isolation.sandbox.zygotes import HANDLER, pid_of
from tests.support.foreign import SAME, Foreign, foreign_farms, installed
from tests.support.harness import Harness, Running, namespaces_of, status_of

pytestmark = pytest.mark.root

LOST = ImageUnavailable("the agent is gone", retry_after_s=7)
NETWORK_CAPABILITIES = 1 << 12 | 1 << 13


@pytest.fixture
def foreign(harness: Harness) -> Iterator[Foreign]:
    with foreign_farms(harness) as farms:
        yield farms


def start(foreign: Foreign, zygote: Zygote, source: str = HANDLER, **options: object) -> Running:
    """A sandbox of a foreign Zygote; the caller destroys it."""
    harness = foreign.harness
    program = harness.program(source, **options)  # type: ignore[arg-type]
    parts = foreign.farms.parts_of(zygote)

    async def fork() -> Sandbox:
        return await Sandbox.fork(parts, zygote, program.limits, await harness.reserve(program.limits), program)

    return Running(harness, harness.run(fork()), program)


def ended(foreign: Foreign) -> None:
    """Wait until everything that was closed is gone."""
    foreign.harness.run(foreign.harness._settled())
    foreign.harness.run(foreign.farms.settled())


@pytest.mark.parametrize("is_walled", [False, True])
def test_it_has_no_capability_in_the_initial_user_namespace(foreign: Foreign, is_walled: bool) -> None:
    zygote = foreign.root(is_walled=is_walled)
    status, host = status_of(pid_of(zygote)), namespaces_of("self")
    namespaces = namespaces_of(pid_of(zygote))
    assert namespaces["user"] != host["user"] and namespaces["mnt"] != host["mnt"] and namespaces["pid"] != host["pid"]
    assert (namespaces["net"] != host["net"]) is is_walled
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(zygote.uids.absolute)}
    assert status["Groups"] == "" and status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    for kind in ("CapPrm", "CapEff", "CapBnd"):
        assert (int(status[kind], 16) & NETWORK_CAPABILITIES == 0) is is_walled
    foreign.close(zygote)


def test_it_may_do_what_a_zygote_with_packages_may_and_no_more(foreign: Foreign, harness: Harness) -> None:
    harness.add_package("p", {"nosy.py": NOSY})
    parent = foreign.root()
    zygote = harness.run(parent.spawn(limit_bytes=256 << 20, deadline_s=5, on_end=foreign.ended.append))
    running = start(foreign, zygote, "import nosy\ndef handler(event): return nosy.look()\n", paths=["/packages/p"])
    seen = running.answer()
    assert seen["host"] == [] and seen["uid"] == 1000 and set(seen["errnos"].values()) == {1}
    assert seen["pids"] == [1], "it sees its own processes only"
    assert {int(value, 16) for key, value in status_of(running.pid).items() if key.startswith("Cap")} == {0}
    running.destroy()
    foreign.close(zygote)
    foreign.close(parent)


NOSY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)

def errno_of(call):
    ctypes.set_errno(0)
    return ctypes.get_errno() if call() == -1 else 0

def look():
    return {
        "uid": os.getuid(),
        "host": [each for each in ("/root/.ssh", "/home", "/var/lib", "/etc/shadow") if os.path.exists(each)],
        "pids": [int(name) for name in os.listdir("/proc") if name.isdigit()],
        "errnos": {
            "mount": errno_of(lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
            "unshare": errno_of(lambda: libc.unshare(0x10000000)),
            "setns": errno_of(lambda: libc.setns(0, 0)),
            "ptrace": errno_of(lambda: libc.ptrace(16, 1, 0, 0)),
        },
    }
"""


def test_it_holds_no_descriptor_but_its_control_socket(foreign: Foreign) -> None:
    zygote = foreign.root()
    held = {int(each.name): os.readlink(each) for each in Path(f"/proc/{pid_of(zygote)}/fd").iterdir()}
    assert sorted(held) == [0, 1, 2, 3] and {held[number] for number in (0, 1, 2)} == {"/dev/null"}
    assert held[3].startswith("socket:")
    foreign.close(zygote)


def test_its_interpreter_is_confined_before_its_first_instruction(foreign: Foreign) -> None:
    witness = foreign.harness.packages / "witness"
    witness.write_text(
        f"#!{OWN_PYTHON.executable} -IS\n"
        "import os, sys\n"
        "words = [line.split() for line in open('/proc/self/status')]\n"
        "kept = [' '.join(each) for each in words if each[0] in ('NoNewPrivs:', 'Seccomp:', 'Seccomp_filters:', 'Uid:')]\n"
        "open_files = sorted(map(int, os.listdir('/proc/self/fd')))\n"
        "print(*kept, open('/proc/self/uid_map').read().split(), len(open_files), sep='\\n', file=sys.stderr)\n"
        "os.mkdir('/tmp/x')\n"
    )
    witness.chmod(0o755)
    foreign.interpreters.executable = "/packages/witness"
    with pytest.raises(ZygoteGone, match="did not become a Zygote") as reported:
        foreign.root()
    words = str(reported.value).split("did not become a Zygote: ")[1].splitlines()
    kept = {"Uid: 1000 1000 1000 1000", "NoNewPrivs: 1", "Seccomp: 2", "Seccomp_filters: 2"}
    assert set(words[:4]) == kept and words[4].startswith("['1000', '")
    assert words[5] == "5", "three standard streams, its control socket and the directory that is listed"
    assert "Permission denied" in words[-1], "it can write nothing that another of its farm reads"
    witness.unlink()


def test_farms_see_neither_each_others_processes_nor_files(foreign: Foreign, harness: Harness) -> None:
    zygote = foreign.root()
    assert namespaces_of(pid_of(zygote))["pid"] != namespaces_of(pid_of(harness.root))["pid"]
    running = start(foreign, zygote, "import os\ndef handler(event): return sorted(os.listdir('/proc'))\n")
    assert [each for each in running.answer() if each.isdigit()] == ["1"]
    running.destroy()
    foreign.close(zygote)


def test_one_behind_a_wall_is_no_fork_of_one_on_the_hosts_network(foreign: Foreign, harness: Harness) -> None:
    host, walled = foreign.root(), foreign.root(is_walled=True)
    assert pidfds.pid_and_parent(walled.pidfd)[1] == pidfds.pid_and_parent(host.pidfd)[1]
    for kind in ("ipc", "uts", "net", "user"):
        assert namespaces_of(pid_of(host))[kind] != namespaces_of(pid_of(walled))[kind]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = f"import socket\ndef handler(event): return socket.socket().connect_ex(('127.0.0.1', {port}))\n"
        outside, inside = start(foreign, host, source), start(foreign, walled, source, network="none")
        assert outside.answer() == 0 and inside.answer() != 0
    outside.destroy()
    inside.destroy()
    foreign.close(host)
    foreign.close(walled)


@pytest.mark.parametrize("network", ["host", "none"])
def test_its_sandboxes_answer_and_its_child_zygotes_import(foreign: Foreign, harness: Harness, network: str) -> None:
    harness.add_package("p", {"some_package.py": "import os\nvalue = os.getpid()\n"})
    parent = foreign.root(is_walled=network == "none")
    child = harness.run(parent.spawn(limit_bytes=256 << 20, deadline_s=5, on_end=foreign.ended.append))
    assembly = foreign.farms.parts_of(child).assembly
    root = harness.run(assembly.create_for_imports(harness.limits(), child.pidfd))
    request = ImportRequest(paths=["/packages/p"], modules=["some_package"])
    imported = harness.run(child.import_modules(request, root.fd, deadline_s=10))
    root.close()
    assert not imported.failed
    source = "import some_package, sys\ndef handler(event): return [event, some_package.value]\n"
    first, second = (
        start(foreign, zygote, source, network=network, paths=["/packages/p"]) for zygote in (parent, child)
    )
    assert first.answer("a") == ["a", 1] and second.answer("b")[0] == "b" and second.answer("b")[1] != 1
    first.destroy()
    second.destroy()
    foreign.close(child)
    foreign.close(parent)


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_other_pythons_of_the_host_are_served(foreign: Foreign, version: str) -> None:
    python = installed(version)
    zygote = foreign.root(f"test:{version}")
    source = (
        "import sys, os\ndef handler(event): return [list(sys.version_info[:3]), os.environ['AWS_EXECUTION_ENV']]\n"
    )
    running = start(foreign, zygote, source)
    assert running.answer() == [list(python.version), f"AWS_Lambda_python{version}"]
    running.destroy()
    foreign.close(zygote)


def test_its_sandboxes_outlive_it_and_the_farm_ends_with_the_last_of_them(foreign: Foreign) -> None:
    zygote = foreign.root()
    running = start(foreign, zygote)
    pid = running.pid
    os.kill(pid_of(zygote), signal.SIGKILL)
    while zygote.alive:
        foreign.harness.run(foreign.harness._settled())
        os.sched_yield()
    assert running.answer(1) == 1 and foreign.ended == [zygote]
    running.destroy()
    ended(foreign)
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(ZygoteGone):
        foreign.farms.parts_of(zygote)
    assert foreign.uids._next_child == len(foreign.uids._free_children), "its block of uids is free again"


def test_its_farm_is_started_again_when_it_is_needed(foreign: Foreign) -> None:
    for number in range(2):
        zygote = foreign.root()
        running = start(foreign, zygote)
        assert running.answer(number) == number
        running.destroy()
        foreign.close(zygote)
        ended(foreign)


def test_two_roots_share_one_farm(foreign: Foreign) -> None:
    first, second = foreign.root(), foreign.root(is_walled=True)
    assert namespaces_of(pid_of(first))["mnt"] == namespaces_of(pid_of(second))["mnt"]
    foreign.close(first)
    ended(foreign)
    running = start(foreign, second, network="none")
    assert running.answer("still there") == "still there"
    running.destroy()
    foreign.close(second)


def test_an_interpreter_that_is_not_there_is_refused_with_a_reason(foreign: Foreign) -> None:
    with pytest.raises(NoInterpreter, match="installed are"):
        foreign.root("test:3.99")
    with pytest.raises(SandboxFailed, match="no interpreter"):
        foreign.root("nowhere:3.13")


def test_one_that_cannot_be_executed_says_so_and_leaves_nothing(foreign: Foreign) -> None:
    foreign.interpreters.executable = "/usr/bin/no-such-python"
    with pytest.raises(ZygoteGone, match="No such file or directory"):
        foreign.root()
    ended(foreign)
    with pytest.raises(KeyError):
        foreign.farms.interpreter(SAME)


class OnImage(ImageTree):
    """The tree of a test's farm, as if it were an image's."""

    def __init__(self, base: Base, image: ImageBase) -> None:
        self._base = base
        self.path, self.at, self.image = base.path, base.at, image
        image.hold()

    @property
    def resolv_conf_fd(self) -> int:
        return self._base.resolv_conf_fd

    @property
    def private_resolv_conf(self) -> str:
        return self._base.private_resolv_conf

    def close(self) -> None:
        self._base.close()
        self.image.let_go()


@pytest.fixture
def images(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> list[ImageBase]:
    """Mounts of the image that the interpreter is in, the last one last: a new one for each farm."""
    mounts: list[ImageBase] = []
    open_base = foreign.interpreters.open

    async def open_on_image(interpreter: str) -> tuple[Interpreter, OnImage]:
        foreign.interpreters.directory = foreign.harness.directory / f"interpreter-of-mount-{id(foreign)}-{len(mounts)}"
        found, base = await open_base(interpreter)
        mounts.append(ImageBase(-1, -1))
        return found, OnImage(base, mounts[-1])

    monkeypatch.setattr(foreign.interpreters, "open", open_on_image)
    return mounts


def test_a_farm_in_a_lost_image_gets_no_zygote_and_ends_with_its_last_sandbox(
    foreign: Foreign, images: list[ImageBase]
) -> None:
    retired: list[tuple[str, ImageUnavailable]] = []
    foreign.farms.retired.append(lambda interpreter, error: retired.append((interpreter, error)))
    first, walled = foreign.root(), foreign.root(is_walled=True)
    running = start(foreign, first)
    assert running.answer(1) == 1
    foreign.harness.call(lambda: images[0].lose(LOST))
    assert retired == [(SAME, LOST)] and foreign.farms.is_retired(first) and foreign.farms.is_retired(walled)
    assert running.dead, "it waited for a request"
    second = foreign.root()
    assert namespaces_of(pid_of(second))["mnt"] != namespaces_of(pid_of(first))["mnt"]
    with pytest.raises(ImageUnavailable, match="the agent is gone"):
        start(foreign, first)
    other = start(foreign, second)
    assert other.answer(2) == 2 and not foreign.farms.is_retired(second)
    for zygote in (first, walled):
        foreign.close(zygote)
    ended(foreign)
    assert images[0].holders == 0 and not images[0].watchers
    with pytest.raises(ZygoteGone):
        foreign.farms.parts_of(first)
    assert other.answer(3) == 3 and foreign.farms.parts_of(second).image is images[1]
    other.destroy()
    foreign.close(second)
    ended(foreign)
    assert images[1].holders == 0 and not images[1].watchers


@pytest.mark.parametrize("when", ["opened", "exec'd", "failed"])
def test_a_root_that_is_made_while_its_image_is_lost_learns_why(
    foreign: Foreign, images: list[ImageBase], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    start_farm, exec_foreign = Farm.start, Farm.exec_foreign

    async def start_then_lose(*args: Any) -> Farm:
        farm = await start_farm(*args)
        if when == "opened":
            images[0].lose(LOST)
        return farm

    async def exec_then_lose(self: Farm, *args: Any, **options: Any) -> int:
        pidfd = await exec_foreign(self, *args, **options)
        images[0].lose(LOST)
        if when == "failed":
            os.close(pidfd)
            raise SandboxFailed("the interpreter cannot be read")
        return pidfd

    monkeypatch.setattr(Farm, "start", start_then_lose)
    monkeypatch.setattr(Farm, "exec_foreign", exec_then_lose)
    with pytest.raises(ImageUnavailable, match="the agent is gone"):
        foreign.root()
    ended(foreign)
    assert images[0].holders == 0 and not images[0].watchers
    monkeypatch.undo()
    with pytest.raises(KeyError):
        foreign.farms.interpreter(SAME)
