"""What a package saw, or left behind, when a Zygote imported it must be right in each function that is forked from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.daemon.running import DeployFailed, RunningDaemon
from tests.faults.packages import SLOW
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

pytestmark = pytest.mark.root
LEARN_DEADLINE_S = 120.0


def answers(worker: PrivateWorker, name: str, package: str, code: str) -> tuple[Any, list[Any]]:
    """What a function says of a package in a start of its own, and in two from a Zygote that has imported the package."""
    module = name.replace("-", "_")
    handler = f"import {module}\n{code}"
    wheels = [wheel(name, "1.0", {f"{module}.py": SLOW + package})]
    worker.deploy(name, handler, requirements=[name], wheels=wheels)
    own = worker.call(name)
    return own, [worker.call_learned(name) for _ in range(2)]


SURROUNDINGS = """
import getpass, os, pathlib, platform, resource, sys, tempfile
SAW = [str(pathlib.Path.home()), tempfile.gettempdir(), os.getcwd(), getpass.getuser(), os.getuid(), os.getgid(),
       platform.node(), os.environ.get("PATH"), os.environ.get("TMPDIR"), sys.argv[0], os.listdir("/tmp"),
       os.path.realpath("/tmp"), os.sysconf("SC_OPEN_MAX"), resource.getrlimit(resource.RLIMIT_NOFILE)]
"""


@case(
    "P30",
    "import a package that keeps HOME, the directory for temporary files, the working directory, uid, host name, PATH, the "
    "limit of open files",
    expect="from a Zygote it has kept the same as in a start of the function's own",
)
def test_what_a_package_keeps_of_its_surroundings_is_the_sandboxs(worker: PrivateWorker, happened: Happened) -> None:
    own, learned = answers(worker, "p-around", SURROUNDINGS, "def f(event): return p_around.SAW\n")
    happened(f"own: {own}")
    assert learned == [own, own]


@case(
    "P31",
    "import a package that makes a semaphore and keeps it, as joblib and tqdm do",
    expect="it works in a Zygote as in a sandbox, and no two sandboxes share it",
)
def test_semaphores_are_made_in_a_zygote_and_are_each_sandboxs_own(worker: PrivateWorker) -> None:
    package = (
        "import multiprocessing as m\ntry:\n    LOCK = m.get_context('fork').Lock()\nexcept OSError:\n    LOCK = None\n"
    )
    own, learned = answers(
        worker, "p-lock", package, "def f(event): return p_lock.LOCK and p_lock.LOCK.acquire(False)\n"
    )
    assert own is True and learned == [True, True]


@case(
    "P32",
    "import a package that leaves files open and writes to /tmp",
    expect="each sandbox has the files open at their numbers, with offsets of its own, and the files in /tmp",
)
def test_files_of_imports_are_there_in_each_sandbox(worker: PrivateWorker) -> None:
    package = (
        "import os\nFILE = open(__file__, 'rb', buffering=0)\nFILE.read(5)\n"
        "os.makedirs('/tmp/.cache/p')\nLOG = open('/tmp/.cache/p/log', 'w+')\nLOG.write('1')\nLOG.flush()\n"
    )
    code = (
        "import os\ndef f(event):\n    p_files.LOG.write('2')\n    p_files.LOG.flush()\n"
        "    return [p_files.FILE.fileno(), p_files.FILE.read(8).decode(), open('/tmp/.cache/p/log').read()]\n"
    )
    own, learned = answers(worker, "p-files", package, code)
    assert own[1:] == ["t time a", "12"]
    assert learned == [own, own]


@case(
    "P33",
    "import packages that leave a socket, a pipe or epoll open",
    expect="none of them is in a Zygote, with the reason, and their functions answer",
)
@pytest.mark.parametrize(
    "kind",
    ["import socket; KEPT = socket.socket()", "import os; KEPT = os.pipe()", "import select; KEPT = select.epoll()"],
)
def test_what_cannot_be_renewed_is_refused(worker: PrivateWorker, kind: str, happened: Happened) -> None:
    name = f"p-{kind.split()[1].strip(';')}"
    module = name.replace("-", "_")
    worker.deploy(
        name,
        f"import {module}\ndef f(event): return 1\n",
        requirements=[name],
        wheels=[wheel(name, "1.0", {f"{module}.py": SLOW + kind})],
    )
    assert worker.call(name) == 1
    reason = worker.daemon.when(
        lambda: next((e["reason"] for e in worker.json("/tree")["refused"] if e["package"] == f"{name}==1.0"), None)
    )
    happened(reason)
    assert f"{module} leaves" in reason


@case(
    "P34",
    "import a package with handlers of pthread_atfork(3) and hooks of Python",
    expect="in each sandbox they have run in fork(3)'s order, and threading knows the number of the main thread",
)
def test_fork_handlers_run_in_order(worker: PrivateWorker) -> None:
    package = (
        "import ctypes, threading\nclass Log:\n    __slots__ = ('done',)  # which no fingerprint describes\n"
        "LOG, KEPT, T = Log(), [], ctypes.CFUNCTYPE(None)\nLOG.done = []\n"
        "def note(word):\n    KEPT.append(T(lambda: LOG.done.append(word)))\n    return KEPT[-1]\n"
        "for n in '12':\n    ctypes.CDLL(None).__register_atfork(note('before ' + n), None, note('child ' + n), None)\n"
    )
    code = (
        "import threading\ndef f(event):\n"
        "    return [p_atfork.LOG.done[-4:], threading.main_thread().native_id == threading.get_native_id()]\n"
    )
    own, learned = answers(worker, "p-atfork", package, code)
    assert own == [[], True]
    assert learned == [[["before 2", "before 1", "child 1", "child 2"], True]] * 2


@case(
    "P35",
    "import a package with generators of random numbers in instances, closures and slots, some of them seeded by hand, and "
    "with multiprocessing, which draws a key",
    expect="those seeded by the kernel differ between sandboxes; those seeded by hand are as in a start of the function's own",
)
def test_generators_of_a_package_differ_between_sandboxes(worker: PrivateWorker) -> None:
    package = "import random\nA = {'x': [random.Random()]}\n"
    package += "B = (lambda r: lambda: r.random())(random.Random())\nC = random.Random(1)\n"
    package += "from multiprocessing import current_process\nD = lambda: current_process().authkey.hex()\n"
    code = "def f(event): return [p_random.A['x'][0].random(), p_random.B(), p_random.D(), p_random.C.random()]\n"
    own, learned = answers(worker, "p-random", package, code)
    assert len({drawn for each in (own, *learned) for drawn in each[:3]}) == 9
    assert {each[3] for each in (own, *learned)} == {own[3]}


CHANGES = {
    "chdir": ("import os; os.chdir('/tmp')", "os.getcwd()", "/tmp", "working directory"),
    "gc": ("import gc; gc.disable()", "__import__('gc').isenabled()", False, "garbage collector"),
    "process": (
        "import subprocess; P = subprocess.Popen(['/bin/sleep', '100'])",
        "p.P.poll()",
        None,
        "an import starts sleep",
    ),
    "unheard": (
        "import ctypes as c; P = c.c_int(); words = (c.c_char_p * 3)(b'sleep', b'100', None)\n"
        "c.CDLL(None).posix_spawn(c.byref(P), b'/bin/sleep', None, None, words, None)",
        "os.waitpid(p.P.value, os.WNOHANG)[0]",
        0,
        "process running",
    ),
    "timer": ("import signal; signal.setitimer(0, 3600)", "__import__('signal').getitimer(0)[0] > 0", True, "timer"),
    "path": ("import sys; sys.path.insert(0, '/tmp/a')", "__import__('sys').path[0]", "/tmp/a", "sys.path"),
    "limit": ("import resource as r; r.setrlimit(7, (99, 99))", "p.r.getrlimit(7)[0]", 99, "resource limit"),
    "stdout": ("import os; os.dup2(os.open('/tmp/o', 66), 1)", "os.readlink('/proc/self/fd/1')", "/tmp/o", "redirects"),
    "lock": (
        "import fcntl; F = open('/tmp/l', 'w'); fcntl.flock(F, 6)",
        "os.path.exists('/tmp/l')",
        True,
        "a locked file",
    ),
}
"""Name -> what a package does, what is asked for then, its value, and a part of the reason."""


@case(
    "P39",
    "import packages that change directory, limits, sys.path or the collector, start a process, or leave one, a timer or a lock",
    expect="none of them is in a Zygote, with the reason, and their functions answer as in a start of their own",
)
@pytest.mark.parametrize("what", CHANGES)
def test_what_a_fork_would_lose_is_refused(worker: PrivateWorker, what: str, happened: Happened) -> None:
    package, question, expected, words = CHANGES[what]
    name = f"c-{what}"
    worker.deploy(
        name,
        f"import os, c_{what} as p\ndef f(event): return {question}\n",
        requirements=[name],
        wheels=[wheel(name, "1.0", {f"c_{what}.py": SLOW + package})],
    )
    assert worker.call(name) == expected
    reason = worker.daemon.when(
        lambda: next((e["reason"] for e in worker.json("/tree")["refused"] if e["package"] == f"{name}==1.0"), None)
    )
    happened(reason)
    assert words in reason


@case(
    "P38",
    "import a package that maps a file, and look for it in /proc/self/maps, as threadpoolctl looks for BLAS libraries",
    expect="the path is that of a start of the function's own",
)
def test_mapped_files_have_the_paths_of_the_sandbox(worker: PrivateWorker, happened: Happened) -> None:
    package = "import mmap\nwith open(__file__, 'rb') as file:\n    KEPT = mmap.mmap(file.fileno(), 0, 2, 1)\n"
    code = "def f(event): return [line.split()[-1] for line in open('/proc/self/maps') if 'p_maps.py' in line]\n"
    own, learned = answers(worker, "p-maps", package, code)
    happened(f"own: {own}; learned: {learned}")
    assert own[0].startswith("/packages/p-maps-1.0-") and learned == [own, own]


APPENDS = """
import os, sys
sys.path.append(os.path.join(os.path.dirname(__file__), "p_paths_vendor"))
sys.path.append("/opt/outside")
"""
"""As setuptools, which carries distributions in a directory of its own."""


@case(
    "P45",
    "import a package that appends directories to sys.path, as setuptools does, and another one that does so, too",
    expect="sys.path, and the distributions that `importlib.metadata` finds there, are those of a start of the function's own",
)
def test_directories_that_imports_append_to_sys_path_are_in_learned_starts(
    worker: PrivateWorker, happened: Happened
) -> None:
    inner = "p_paths_vendor/inner-3.0.dist-info/METADATA"
    first = {"p_paths.py": SLOW + APPENDS, "p_paths_vendor/inner.py": "X = 7\n", inner: "Name: inner\nVersion: 3.0\n"}
    second = {"p_paths_two.py": SLOW + "import p_paths, inner, sys\nsys.path.append('/opt/second')\n"}
    wheels = [wheel("p-paths", "1.0", first), wheel("p-paths-two", "1.0", second, requires=("p-paths",))]
    handler = (
        "import p_paths_two, inner, sys\nfrom importlib.metadata import distributions\n"
        "def f(event): return [sys.path, inner.X, sorted(each.name for each in distributions())]\n"
    )
    worker.deploy("paths-parent", "import p_paths\ndef f(event): return 1\n", requirements=["p-paths"], wheels=wheels)
    worker.call("paths-parent")
    worker.daemon.when(lambda: worker.daemon.node("p-paths==1.0"))
    worker.deploy("paths-own", handler, requirements=["p-paths-two"], zygote="none")
    own = worker.call("paths-own")
    happened(f"own: {own}")
    assert own[0][-1] == "/opt/second" and own[1:] == [7, ["inner", "p-paths", "p-paths-two"]]
    for name in ("first", "second"):
        worker.deploy(f"paths-{name}", handler, requirements=["p-paths-two"])
        assert worker.call(f"paths-{name}") == own
        assert worker.call_learned(f"paths-{name}") == own
    assert any("p-paths-two==1.0" in node["packages"] for node in worker.daemon.nodes())


@case(
    "P46",
    "import a package that imports logging, and ask a record how long ago logging was imported (`relativeCreated`)",
    expect="from a Zygote it counts from the start of the function, as in a start of its own",
)
def test_the_clock_of_logging_begins_with_the_function(worker: PrivateWorker, happened: Happened) -> None:
    code = (
        "import logging\ndef f(event):\n    record = logging.makeLogRecord({})\n"
        "    return [record.created - record.relativeCreated / 1000, record.created]\n"
    )
    wheels = [wheel("p-clock", "1.0", {"p_clock.py": SLOW + "import logging\n"})]
    worker.deploy("clock", f"import p_clock\n{code}", requirements=["p-clock"], wheels=wheels)
    for call in (worker.call, worker.call_learned, worker.call_learned):
        worker.daemon.wait_verified()
        began = time.time()
        zero, now = call("clock")
        happened(f"{now - zero:.3f} s ago")
        assert began <= zero <= now


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A worker with uv's own index."""
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("real") / "state")
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()


REAL = {
    "geopandas": (
        "import geopandas\nfrom shapely.geometry import Point\ndef f(event):\n"
        "    s = geopandas.GeoSeries([Point(8.5, 47.4)], crs=4326).to_crs(3857)\n    return [round(s.x[0]), round(s.y[0])]\n"
    ),
    "matplotlib": (
        "import matplotlib, matplotlib.font_manager as m, os\ndef f(event):\n"
        "    return [matplotlib.get_cachedir(), matplotlib.get_configdir(), sorted(os.listdir(matplotlib.get_cachedir())),\n"
        "            os.path.exists(matplotlib.get_configdir())]\n"
    ),
    "joblib": (
        "import joblib, joblib._multiprocessing_helpers as h\ndef f(event):\n"
        "    work = joblib.Parallel(n_jobs=2, backend='loky')\n"
        "    return [h.mp is not None, work(joblib.delayed(abs)(number) for number in (-1, -2))]\n"
    ),
    "nltk": "import nltk\ndef f(event): return nltk.data.path\n",
    "setuptools": (
        "import setuptools, sys, jaraco.text\nfrom importlib.metadata import distributions\n"
        "def f(event): return [sys.path, sorted(each.name for each in distributions())]\n"
    ),
    "rich": "import rich, rich.console, rich.table, rich.markdown\ndef f(event): return rich._IMPORT_CWD\n",
}


@case(
    "P36",
    "deploy geopandas, matplotlib, joblib, nltk and rich again after they were learned",
    expect="the answer of a first start",
    default=False,
)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", REAL)
def test_real_packages_answer_as_in_a_first_start(real: RunningDaemon, package: str, happened: Happened) -> None:
    files = {"f.py": REAL[package], "requirements.txt": package}
    settings: dict[str, Any] = {"memory_mb": 768, "timeout_s": 60, "init_timeout_s": 60}
    try:
        real.deploy(f"{package}-1", files, **settings)
    except DeployFailed as error:
        if error.type == "Packages.Failed":
            pytest.skip(f"no package index can be reached: {error.message}")
        raise
    first = real.run(f"{package}-1")
    assert first.status == 200, first.body
    real.wait_verified(LEARN_DEADLINE_S)
    assert real.tree()["refused"] == []
    assert real.call_learned(f"{package}-1") == first.json
    second = real.run_learned(f"{package}-1")
    happened(f"{second.json}; init {first.timing['init']:.0f} -> {second.timing['init']:.0f} ms")
    assert second.json == first.json
    assert second.timing["init"] < first.timing["init"]


@case(
    "P37",
    "ask Faker for names in sandboxes of one Zygote",
    expect="other names in each",
    default=False,
)
@pytest.mark.timeout(300)
def test_faker_says_something_else_in_each_sandbox(real: RunningDaemon) -> None:
    code = "from faker import Faker\nfaker = Faker()\ndef f(event): return [faker.name() for _ in range(5)]\n"
    files = {"f.py": code, "requirements.txt": "faker"}
    try:
        real.deploy("faker-0", files, memory_mb=256, timeout_s=20)
    except DeployFailed as error:
        if error.type == "Packages.Failed":
            pytest.skip(f"no package index can be reached: {error.message}")
        raise
    said = [real.call("faker-0")]
    real.wait_verified(LEARN_DEADLINE_S)
    said += [real.call_learned("faker-0") for _ in range(3)]
    assert len({name for names in said for name in names}) > 15
