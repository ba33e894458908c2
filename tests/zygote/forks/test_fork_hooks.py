"""What packages register for forks is remembered in its order, rehearsed without doing harm, and left out where it has no use."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


HEAD = f"""
import json, os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from sockd_zygote.forks import fork_hooks
done = []
def forked():
    "What hooks have done in a child."
    done.clear()
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.write(theirs, json.dumps(done).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(ours, 1000))
"""


def reported(program: str) -> object:
    """What a program prints as JSON; hooks cannot be taken back, so it is a process of its own."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", HEAD + program], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


THREE = """
register = os.register_at_fork
with fork_hooks.Watch():
    os.register_at_fork(before=lambda: done.append("b1"), after_in_child=lambda: done.append("c1"))
    os.register_at_fork(after_in_parent=lambda: done.append("p2"), after_in_child=lambda: done.append("c2"))
    os.register_at_fork(before=lambda: done.append("b3"), after_in_child=lambda: done.append("c3"))
assert os.register_at_fork is register
"""


def test_a_rehearsal_runs_what_a_fork_would_run_in_a_child() -> None:
    child = """
fork_hooks.rehearse(1)
rehearsed = done[:]
print(json.dumps([rehearsed, forked()]))
"""
    assert reported(THREE + child) == [["b3", "b1", "c1", "c2", "c3"]] * 2


def test_it_is_repeated_but_not_for_long() -> None:
    often = "fork_hooks.rehearse(3)\nprint(json.dumps(len(done)))"
    assert reported(THREE + often) == 15
    slow = "fork_hooks.LONGEST_S = -1\nfork_hooks.rehearse(3)\nprint(json.dumps(done))"
    assert reported(THREE + slow) == []


def test_a_lock_that_only_the_parent_gives_back_is_not_taken() -> None:
    locking = """
import threading
lock = threading.Lock()
with fork_hooks.Watch():
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release)
fork_hooks.rehearse(2)
print(json.dumps(lock.locked()))
"""
    assert reported(locking) is False


def test_a_hook_that_fails_hinders_no_other() -> None:
    failing = """
with fork_hooks.Watch():
    os.register_at_fork(after_in_child=lambda: 1 / 0)
    os.register_at_fork(after_in_child=lambda: done.append("last"))
fork_hooks.rehearse(2)
print(json.dumps(done))
"""
    assert reported(failing) == ["last", "last"]


@pytest.mark.parametrize("name", ["", "python3.11", "python3.12", "python3.13"])
def test_a_forks_threading_knows_its_main_thread_and_no_other(name: str) -> None:
    """threading's own hook runs, and what it leaves out (the main thread's number, before 3.13) is done beside it."""
    program = """
from sockd_zygote.forks import hygiene
assert "threading" not in sys.modules
with fork_hooks.Watch():
    import threading
fork_hooks.rehearse(2)
hygiene.settle()
waits = threading.Event()
other = threading.Thread(target=waits.wait)
other.start()
ours, theirs = os.pipe()
if os.fork() == 0:
    hygiene.after_fork()
    main = threading.main_thread()
    known = [main.native_id == threading.get_native_id() == os.getpid(), main is threading.current_thread()]
    os.write(theirs, json.dumps([*known, threading.active_count(), other.is_alive()]).encode())
    os._exit(0)
os.wait()
waits.set()
print(os.read(ours, 100).decode())
"""
    interpreter = shutil.which(name) if name else sys.executable
    if interpreter is None or subprocess.run([interpreter, "-V"], capture_output=True, check=False).returncode:
        pytest.skip(f"no {name} here")
    head = HEAD + "import warnings; warnings.simplefilter('ignore')\n"
    command = [interpreter, "-I", "-S", "-c", head + program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, True, 1, False]
