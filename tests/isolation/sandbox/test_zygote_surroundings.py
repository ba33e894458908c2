"""What imports see in a Zygote, and what a fork has of what they left: the same as after imports of its own."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sockd.isolation.farm.imported import Imported
from sockd.isolation.farm.zygote import Zygote
from tests.isolation.sandbox.zygotes import HANDLER
from tests.support.harness import Harness

pytestmark = pytest.mark.root

SURROUNDINGS = """
import getpass, os, pathlib, platform, sys, tempfile
fd = os.open("/dev/null", os.O_RDONLY)
os.close(fd)
seen = {
    "variables": dict(os.environ),
    "home": str(pathlib.Path.home()),
    "temporary": tempfile.gettempdir(),
    "directory": os.getcwd(),
    "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getegid(), getpass.getuser()],
    "host": platform.node(),
    "argv": [sys.argv[0], sys.executable, sys.flags.isolated],
    "tmp": [os.listdir("/tmp"), os.path.realpath("/tmp"), os.path.realpath("/dev/shm")],
    "first descriptor": fd,
    "affinity": sorted(os.sched_getaffinity(0)),
    "limits": [os.umask(0o22), os.nice(0)],
    "owner": [os.stat(path).st_uid for path in ("/", "/usr", "/packages", "/tmp")],
}
"""
ASK = "import {0}\ndef handler(event): return {0}.{1}\n"


def spawn(harness: Harness, source: str, parent: Zygote | None = None, name: str = "p") -> tuple[Zygote, Imported]:
    """A Zygote that has imported one module."""
    harness.add_package(name, {f"{name}.py": source})
    zygote = harness.spawn(parent)
    return zygote, harness.import_modules(zygote, [name])


def test_imports_see_what_a_sandbox_sees(harness: Harness) -> None:
    zygote, imported = spawn(harness, SURROUNDINGS)
    assert not imported.failed and not imported.left
    captured = harness.answer(ASK.format("p", "seen"), zygote=zygote)
    own = harness.answer(SURROUNDINGS + "def handler(event): return seen\n", zygote=zygote)
    assert captured == own


def test_semaphores_and_shared_memory_can_be_made_at_import(harness: Harness) -> None:
    source = "import multiprocessing as m\nlock = m.get_context('fork').Lock()\nok = lock.acquire(timeout=1)\nlock.release()\n"
    zygote, imported = spawn(harness, source)
    assert not imported.failed and not imported.left
    take = "import p\ndef handler(event): return p.lock.acquire(timeout=1)\n"
    # Each takes it and never gives it back: were it one, the second would wait.
    assert [harness.answer(take, zygote=zygote) for _ in range(2)] == [True, True]


def test_a_zygotes_tmp_is_neither_its_siblings_nor_its_parents_nor_its_sandboxes(harness: Harness) -> None:
    look = "import os\nseen = os.listdir('/tmp')\nopen(f'/tmp/{__name__}', 'w').write(__name__)\n"
    parent, _ = spawn(harness, look, name="first")
    child, _ = spawn(harness, look, parent, name="second")
    spawn(harness, look, name="third")
    # A start of its own would have found the first one's file when it imports the second.
    assert harness.answer(ASK.format("second", "seen"), zygote=child) == ["first"]
    other, _ = spawn(harness, look, name="fourth")
    assert harness.answer(ASK.format("fourth", "seen"), zygote=other) == []


LEAVES = """
import os
os.makedirs("/tmp/.cache/p", mode=0o750)
with open("/tmp/.cache/p/list.json", "w") as file:
    file.write("[1, 2]")
os.symlink("list.json", "/tmp/.cache/p/newest")
log = open("/tmp/.cache/p/log", "w+")
log.write("one\\n")
log.flush()
"""
LEFT = """
import os, stat
import p
def handler(event):
    p.log.write(f"two\\n")
    p.log.flush()
    mode = stat.S_IMODE(os.stat("/tmp/.cache/p").st_mode)
    return [open("/tmp/.cache/p/newest").read(), mode, open("/tmp/.cache/p/log").read(), os.fstat(p.log.fileno()).st_size]
"""


@pytest.mark.parametrize("start", ["fork", "spare"])
def test_what_imports_wrote_to_tmp_is_there_in_each_sandbox(harness: Harness, start: str) -> None:
    zygote, imported = spawn(harness, LEAVES)
    assert not imported.failed and not imported.left
    for _ in range(2):
        assert harness.start(LEFT, zygote=zygote, spare=start == "spare").answer() == ["[1, 2]", 0o750, "one\ntwo\n", 8]


VARIABLES = """
import os
import wsgiref.handlers
AT_START = dict(os.environ)
def handler(event):
    copy = wsgiref.handlers.BaseHandler.os_environ
    return [copy["OWN_MODE"], copy == AT_START, {*map(type, copy)} == {str}]
"""


@pytest.mark.parametrize("spare", [False, True])
def test_the_copy_of_all_variables_in_wsgiref_is_each_sandboxes_own(harness: Harness, spare: bool) -> None:
    zygote, imported = spawn(harness, "import wsgiref.handlers\n")
    assert not imported.failed and not imported.seen.every_variable
    for mode in ("one", "other"):
        sandbox = harness.start(VARIABLES, zygote=zygote, spare=spare, env={"OWN_MODE": mode})
        assert sandbox.answer() == [mode, True, True]


OPEN_FILE = """
import os
file = open(__file__, "rb", buffering=0)
head = file.read(10)
fd = os.open("/usr", os.O_RDONLY | os.O_DIRECTORY)
keeps = os.open("/dev/null", os.O_WRONLY)
os.set_inheritable(keeps, True)
"""
READ_ON = """
import os
import p
def handler(event):
    first = p.file.read(10)
    return [first.decode(), p.file.fileno(), bool(os.listdir(p.fd)), os.get_inheritable(p.keeps), os.write(p.keeps, b"x")]
"""


def test_files_that_imports_left_open_are_open_in_each_sandbox(harness: Harness) -> None:
    zygote, imported = spawn(harness, OPEN_FILE)
    assert not imported.failed and not imported.left
    for _ in range(2):  # the second one's offset is not the first one's
        assert harness.answer(READ_ON, zygote=zygote) == [OPEN_FILE[10:20], 4, True, True, 1]
    child, _ = spawn(harness, "x = 1\n", zygote, name="q")
    assert harness.answer(READ_ON, zygote=child) == [OPEN_FILE[10:20], 4, True, True, 1]


REFUSED = {
    "a socket": ("import socket\nkept = socket.socketpair()\n", "p leaves a socket open (descriptor 4)"),
    "a pipe": ("import os\nkept = os.pipe()\n", "p leaves a pipe open"),
    "epoll": ("import select\nkept = select.epoll()\n", "p leaves eventpoll open"),
    "an eventfd": ("import os\nkept = os.eventfd(0)\n", "p leaves eventfd open"),
    "a memory file": ("import os\nkept = os.memfd_create('x')\n", "p leaves a deleted file"),
    "a deleted file": ("import tempfile\nkept = tempfile.TemporaryFile()\n", "p leaves a deleted file"),
    "its own /proc": ("import os\nkept = open('/proc/self/status')\n", "p leaves a file of its own process"),
    "much shared memory": ("import mmap\nkept = mmap.mmap(-1, 2 << 20)\n", "bytes of shared memory"),
    "much in /tmp": ("open('/tmp/x', 'wb').write(bytes(2 << 20))\n", "bytes or 128 files in /tmp"),
    "many files in /tmp": ("for n in range(200): open(f'/tmp/{n}', 'w')\n", "bytes or 128 files in /tmp"),
    "a named pipe": ("import os\nos.mkfifo('/tmp/x')\n", "imports leave /tmp/x in /tmp"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_fork_can_have_of_its_own_is_reported(harness: Harness, what: str) -> None:
    source, reason = REFUSED[what]
    _, imported = spawn(harness, source)
    assert not imported.failed
    assert any(reason in complaint for complaint in imported.left), imported.left


def test_a_package_that_closes_what_is_its_zygotes_harms_that_zygote_alone(harness: Harness) -> None:
    harness.add_package("p", {"p.py": "import os\nos.closerange(4, 100)\n"})
    zygote = harness.spawn()
    with pytest.raises(Exception, match=r"Bad file descriptor|gone"):
        harness.import_modules(zygote, ["p"])
    assert harness.answer(HANDLER, 1) == 1


ATFORK = """
import ctypes, os
libc = ctypes.CDLL(None)
register = libc.__register_atfork
HANDLER = ctypes.CFUNCTYPE(None)
done = []
def note(word):
    handler = HANDLER(lambda: done.append(word))
    kept.append(handler)
    return handler
kept = []
for number in (1, 2):
    assert register(note(f"before {number}"), note(f"parent {number}"), note(f"child {number}"), None) == 0
os.register_at_fork(before=lambda: done.append("before"), after_in_child=lambda: done.append("child"))
done.clear()
"""
BOTH_FORKS = """
import json, os
import p
def handler(event):
    mine = p.done[-5:]
    p.done.clear()
    near, far = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(far, json.dumps(p.done).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return [mine, json.loads(os.read(near, 1000)), p.done]
"""


def test_handlers_of_pthread_atfork_run_as_in_fork(harness: Harness) -> None:
    zygote, imported = spawn(harness, ATFORK)
    assert not imported.failed
    child = ["before 2", "before 1", "child 1", "child 2", "child"]
    # "before" of Python is done once for all forks of a Zygote, so not between those of C.
    for _ in range(2):
        mine, forked, parent = harness.answer(BOTH_FORKS, zygote=zygote)
        assert mine == child
        assert forked == ["before", *child]
        assert parent == ["before", "before 2", "before 1", "parent 1", "parent 2"]


THREADING = "import threading\n"
NATIVE_ID = """
import threading
def handler(event): return threading.main_thread().native_id == threading.get_native_id()
"""


def test_threading_knows_its_main_thread(harness: Harness) -> None:
    zygote, _ = spawn(harness, THREADING)
    child, _ = spawn(harness, "x = 1\n", zygote, name="q")
    assert [harness.answer(NATIVE_ID, zygote=each) for each in (zygote, child)] == [True, True]


CLOCK = """
import logging
def handler(event):
    record = logging.makeLogRecord({})
    return [record.created - record.relativeCreated / 1000, record.relativeCreated]
"""


@pytest.mark.parametrize("start", ["fork", "spare"])
def test_the_clock_of_logging_begins_with_the_function(harness: Harness, start: str) -> None:
    zygote, _ = spawn(harness, "import logging\n")
    child, _ = spawn(harness, "x = 1\n", zygote, name="q")
    for each in (zygote, child):
        fork_began = time.time()
        running = harness.start(CLOCK, zygote=each, spare=start == "spare")
        began = time.time() if start == "spare" else fork_began  # a spare may have waited for long
        started, age_ms = running.answer()
        ended = time.time()
        assert began <= started <= ended and 0 <= age_ms <= (ended - began) * 1000


GENERATORS = """
import random
class Holder:
    __slots__ = ("generator",)
holder = Holder()
holder.generator = random.Random()
closure = (lambda generator: lambda: generator.random())(random.Random())
nested = {"a": [(random.Random(),)]}
class Own(random.Random):
    pass
own = Own()
by_hand = random.Random(42)
stated = random.Random()
stated.setstate(random.Random(7).getstate())
system = random.SystemRandom()
"""
DRAW = """
import random
import p
def handler(event):
    drawn = [p.holder.generator.random(), p.closure(), p.nested["a"][0][0].random(), p.own.random(), random.random()]
    return [drawn, [p.by_hand.random(), p.stated.random()], p.system.random()]
"""


@pytest.mark.parametrize("before", ["", "import random\n"])
def test_generators_of_packages_are_seeded_anew_but_for_those_seeded_by_hand(harness: Harness, before: str) -> None:
    import random

    parent, _ = spawn(harness, before, name="before")
    zygote, imported = spawn(harness, GENERATORS, parent)
    assert not imported.failed
    nested, _ = spawn(harness, "x = 1\n", zygote, name="q")
    answers: list[Any] = [harness.answer(DRAW, zygote=each) for each in (zygote, zygote, nested, nested)]
    drawn = [number for generators, _, _ in answers for number in generators]
    assert len(set(drawn)) == len(drawn)
    assert [fixed for _, fixed, _ in answers] == [[random.Random(42).random(), random.Random(7).random()]] * 4


def test_a_global_generator_that_a_package_seeded_stays_as_it_was(harness: Harness) -> None:
    import random

    zygote, _ = spawn(harness, "import random\nrandom.seed(5)\nassert random.seed(5) is None\n")
    handler = "import p, random\ndef handler(event): return random.random()\n"
    assert [harness.answer(handler, zygote=zygote) for _ in range(2)] == [random.Random(5).random()] * 2
