"""What packages do to their Zygote while they are imported: fail, kill it, hang, start threads, fork."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

import pytest

from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.zygote import MAX_TASKS
from tests.isolation.sandbox.zygotes import HANDLER, pid_of
from tests.support.harness import Harness

pytestmark = pytest.mark.root

PATIENCE_S = 10.0
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
def test_a_module_that_cannot_be_imported_is_named_and_the_others_serve(harness: Harness, statement: str) -> None:
    harness.add_package("p", {"failing.py": f"{statement}\n", "good.py": "x = 1\n"})
    zygote = harness.spawn()
    imported = harness.import_modules(zygote, ["failing", "good"])
    assert list(imported.failed) == ["failing"]
    assert imported.failed["failing"].startswith(FAILING[statement])
    assert imported.threads == 1
    assert harness.answer("import sys\ndef handler(event): return 'good' in sys.modules\n", zygote=zygote) is True


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
    "an answer that takes long to read": "import os; os.write(3, b'[' * 40_000)",
    "too much memory": "kept = [bytearray(1 << 20) for _ in range(2000)]",
}


@pytest.mark.parametrize("what", FATAL)
def test_a_module_that_kills_its_zygote_kills_no_one_else(harness: Harness, what: str) -> None:
    harness.add_package("p", {"fatal.py": f"{FATAL[what]}\n"})
    parent = harness.spawn()
    sibling = harness.start(HANDLER, zygote=parent)
    assert sibling.answer(1) == 1
    zygote = harness.spawn(parent)
    with pytest.raises(ZygoteGone):
        harness.import_modules(zygote, ["fatal"])
    harness.call(zygote.close)
    assert sibling.answer(2) == 2
    assert harness.answer(HANDLER, 3, zygote=parent) == 3


def test_a_module_that_hangs_is_given_up_at_the_deadline(harness: Harness) -> None:
    harness.add_package(
        "p", {"hanging.py": "import signal\nsignal.pthread_sigmask(0, range(1, 65))\nwhile True: pass\n"}
    )
    zygote = harness.spawn()
    pid = pid_of(zygote)
    with pytest.raises(ZygoteGone), Deadline(5.0):  # half of what it would have without one of its own
        harness.import_modules(zygote, ["hanging"], deadline_s=0.2)
    assert not zygote.alive
    harness.settle()
    assert not Path(f"/proc/{pid}").exists()
    assert zygote.name in harness.ended


class Deadline:
    """Asserts that what happens within took no longer."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *error: object) -> None:
        assert time.monotonic() - self._started < self._limit_s


def test_a_module_that_starts_threads_is_reported(harness: Harness) -> None:
    harness.add_package(
        "p", {"threaded.py": "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"}
    )
    assert harness.import_modules(harness.spawn(), ["threaded"]).threads == 2


def test_a_fork_bomb_in_a_zygote_meets_a_limit_and_leaves_nothing(harness: Harness) -> None:
    source = "import os, signal\ncount = 0\ntry:\n    while os.fork(): count += 1\n    signal.pause()\nexcept OSError: pass\n"
    harness.add_package("p", {"bomb.py": source})
    zygote = harness.spawn()
    assert not harness.import_modules(zygote, ["bomb"]).failed
    assert zygote.cgroup is not None
    assert len(zygote.cgroup.pids()) == MAX_TASKS


UNHEARD_FORK = "import ctypes\nfork = ctypes.PyDLL(None).fork\n"
RETURNING = {
    "a child returns": "import os\nos.fork()\n",
    "a child exits by SystemExit": "import os, sys\nif not os.fork(): sys.exit()\n",
    "a child of a child returns": "import os\nif not os.fork() and os.fork(): os._exit(0)\n",
    "a child of C code returns": f"{UNHEARD_FORK}fork()\n",
    "a child of C code raises": f"{UNHEARD_FORK}if not fork(): raise OSError('in the child')\n",
    "a parent waits for its child": f"{UNHEARD_FORK}import os\npid = fork()\nif pid: os.waitpid(pid, 0)\n",
}


@pytest.mark.parametrize("what", RETURNING)
def test_a_child_that_returns_from_an_import_is_no_second_zygote(harness: Harness, what: str) -> None:
    harness.add_package("p", {"forks.py": RETURNING[what], "after.py": "import os\nopen('/tmp/after', 'x').close()\n"})
    zygote = harness.spawn()
    imported = harness.import_modules(zygote, ["forks", "after"])
    assert not imported.failed  # the child has not imported `after` beside its parent
    assert zygote.cgroup is not None
    while children := set(zygote.cgroup.pids()) - {pid_of(zygote)}:
        for pid in children:
            wait_ended(pid)
    assert bool(imported.left) == ("waits" not in what)
    for number in range(5):
        assert harness.answer(HANDLER, number, zygote=zygote) == number


def wait_ended(pid: int) -> None:
    """Wait until a process has ended, which may have been before."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], PATIENCE_S)[0], f"process {pid} has not ended"
    finally:
        os.close(pidfd)


def test_hooks_of_packages_are_run_in_each_sandbox(harness: Harness) -> None:
    source = (
        "import os\nruns = []\n"
        "os.register_at_fork(before=lambda: runs.append('b'), after_in_child=lambda: runs.append(os.getpid()))\n"
    )
    harness.add_package("p", {"hooked.py": source})
    zygote = harness.spawn()
    harness.import_modules(zygote, ["hooked"])
    handler = "import hooked\ndef handler(event): return hooked.runs[-2:]\n"
    for _ in range(2):
        assert harness.answer(handler, zygote=zygote) == ["b", 1]  # 1: in its pid namespace


THREADS_AFTER_A_ZYGOTE = """
import concurrent.futures.thread, logging, os, threading

def child():
    with logging._lock:
        return len(threading.enumerate()) == 1 and threading.current_thread() is threading.main_thread()

def handler(event):
    '''Threads and locks as they are to be, in a sandbox and in a process that it forks while a thread holds them.'''
    mine = child()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(str, range(20)))
    locked, done = threading.Event(), threading.Event()
    def hold():
        with concurrent.futures.thread._global_shutdown_lock:
            locked.set()
            done.wait(0.05)
    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait()
    pid = os.fork()
    if not pid:
        with concurrent.futures.thread._global_shutdown_lock:
            os._exit(0 if child() else 1)
    done.set()
    thread.join()
    logging.getLogger("x").warning("said")
    counted = answers == [str(each) for each in range(20)]
    return [mine, counted, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), threading.active_count()]
"""


def test_threads_and_locks_are_in_order_in_a_sandbox_and_its_own_forks(harness: Harness) -> None:
    harness.add_package("p", {"threads.py": "import concurrent.futures.thread, logging, threading\n"})
    zygote = harness.spawn()
    assert not harness.import_modules(zygote, ["threads"]).failed
    for _ in range(2):
        assert harness.answer(THREADS_AFTER_A_ZYGOTE, zygote=zygote) == [True, True, 0, 1]


SEES = "import sys\nNAMES = sorted(name for name in sys.modules if not name.startswith('sockd_zygote'))\n"
SEES += "def handler(event): return NAMES\n"


@pytest.mark.parametrize(
    ("code", "loads"),
    [
        ("", set()),
        ("import colorsys\n", {"colorsys"}),
        ("import weakref\n", {"weakref"}),
        ("import logging, random, tempfile\n", {"logging", "random", "tempfile", "weakref", "threading"}),
    ],
)
def test_a_fork_has_the_modules_that_the_imports_have_loaded_and_no_others(
    harness: Harness, code: str, loads: set[str]
) -> None:
    """What observes and settles a Zygote imports weakref and more: a function must not find them."""
    path = harness.add_package("p", {"p.py": f"{code}X = 1\n"})
    before = set(harness.answer(SEES, zygote=harness.spawn()))
    own = set(harness.answer(f"import p\n{SEES}", zygote=harness.spawn(), paths=[path]))
    zygote = harness.spawn()
    ((name, loaded),) = harness.import_modules(zygote, ["p"]).loaded
    assert name == "p"
    assert {"p", *loads} <= loaded == own - before
    assert set(harness.answer(SEES, zygote=zygote, paths=[path])) == own


def test_modules_that_were_forgotten_work_when_packages_import_them(harness: Harness) -> None:
    code = "import logging, threading, weakref\nfrom concurrent.futures import ThreadPoolExecutor\n"
    code += "class A: pass\nKEPT = A()\nREF = weakref.ref(KEPT)\nLOG = logging.getLogger('p')\n"
    harness.add_package("p", {"p.py": code})
    zygote = harness.spawn(modules=["p"])
    handler = "import p, weakref, sys, resource\ndef handler(event):\n    with p.ThreadPoolExecutor(1) as pool:\n"
    handler += "        done = pool.submit(int, '7').result()\n"
    handler += "    return [done, p.REF() is p.KEPT, p.weakref is weakref, resource is sys.modules['resource']]\n"
    assert harness.answer(handler, zygote=zygote) == [7, True, True, True]


def test_an_error_that_a_package_keeps_holds_nothing_that_watched_its_imports(harness: Harness) -> None:
    """By its traceback it holds the frame of our code that imported the package."""
    harness.add_package("p", {"keeps.py": "try:\n    import nowhere\nexcept ImportError as error:\n    kept = error\n"})
    zygote = harness.spawn(modules=["keeps"])
    handler = "def handler(event): return [str(each) for each in str.__subclasses__() if 'sockd' in each.__module__]\n"
    assert harness.answer(handler, zygote=zygote) == []
