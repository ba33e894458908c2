"""What a function finds out about itself, its children and how they end: the same on each way that a kernel has roots, /proc and
exit statuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sockd.linux.ways import Ways
from tests.daemon.running import RunningDaemon
from tests.support.older_kernel import KERNEL

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

PATHS = {
    "newest": ("", None, "auto"),
    "detached roots, procfs by a child": ('[sandbox]\nkernel = "6.17"\n', (6, 17), "auto"),
    "attached roots, procfs by namespace": ('[sandbox]\nroots = "attached"\n', None, "attached"),
    "6.1": ('[sandbox]\nkernel = "6.1"\n', (6, 1), "auto"),
}
"""A configuration for each, and the ways that it takes."""

HANDLER = """
import ctypes, json, multiprocessing, os, signal, subprocess, sys, threading, time
import psutil

def text(path):
    with open(path) as file:
        return file.read()

def fields(path, *names):
    found = dict(line.split(":", 1) for line in text(path).splitlines() if ":" in line)
    return [found[name].split() for name in names]

def python(code):
    return subprocess.run([sys.executable, "-c", "import os, signal, sys; " + code]).returncode

def exitcode(target, *args):
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    process.join()
    return process.exitcode

def beside(look):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        return look(child)

def caught(number, send):
    got = []
    before = signal.signal(number, lambda number, frame: got.append(number))
    try:
        send()
        while not got:
            signal.pause()
    finally:
        signal.signal(number, before)
    return got == [number]

def f(event):
    return eval(event)
"""

OWN = [
    ("os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0), threading.get_native_id()", [1, 0, 1, 1, 1]),
    ("[os.readlink(f'/proc/{name}') for name in ('self', 'thread-self')]", ["1", "1/task/1"]),
    ("sorted(name for name in os.listdir('/proc') if name.isdigit())", ["1"]),
    ("fields('/proc/self/status', 'Pid', 'PPid', 'Tgid', 'Threads')", [["1"], ["0"], ["1"], ["1"]]),
    ("fields('/proc/self/status', 'Uid', 'Gid', 'NSpid')", [["1000"] * 4, ["1000"] * 4, ["1"]]),
    ("text('/proc/self/stat').split()[0], text('/proc/1/stat').split()[0]", ["1", "1"]),
    ("[os.readlink(f'/proc/self/{name}') for name in ('cwd', 'root')]", ["/var/task", "/"]),
    ("os.readlink('/proc/self/exe') == os.path.realpath(sys.executable)", True),
    ("text('/proc/self/mounts'), text('/proc/self/mountinfo')", ["", ""]),
    ("text('/proc/sys/kernel/hostname').strip(), os.uname().nodename", ["sandbox", "sandbox"]),
    ("sorted({'mnt', 'net', 'pid', 'user', 'uts'} - set(os.listdir('/proc/self/ns')))", []),
    ("sorted(os.listdir('/proc/self/task')), text('/proc/self/comm') == text('/proc/self/task/1/comm')", [["1"], True]),
    ("'libc.so' in text('/proc/self/maps')", True),
    ("os.path.exists('/proc/2'), os.path.exists('/proc/self/fd/0')", [False, True]),
]
PSUTIL = [
    ("psutil.Process().pid, psutil.Process().ppid(), psutil.pids(), psutil.pid_exists(2)", [1, 0, [1], False]),
    ("psutil.Process().status(), psutil.Process().is_running(), psutil.Process().parent()", ["running", True, None]),
    ("psutil.Process().username(), psutil.Process().uids().real", ["sandbox", 1000]),
    ("psutil.Process().cwd(), psutil.Process().exe() == os.path.realpath(sys.executable)", ["/var/task", True]),
    ("psutil.Process().memory_info().rss > 1 << 20, psutil.Process().memory_full_info().uss > 1 << 20", [True, True]),
    ("psutil.Process().num_threads(), len(psutil.Process().threads())", [1, 1]),
    ("psutil.Process().num_fds() == len(os.listdir('/proc/self/fd'))", True),
    ("psutil.Process().cpu_times().user >= 0, psutil.Process().create_time() <= time.time() + 1", [True, True]),
    ("psutil.cpu_count() == os.cpu_count(), psutil.virtual_memory().total > 0, psutil.boot_time() > 0", [True] * 3),
    ("[each.pid for each in psutil.process_iter()]", [1]),
    ("beside(lambda child: [each.pid == child.pid for each in psutil.Process().children()])", [True]),
    ("beside(lambda child: [psutil.Process(child.pid).ppid(), psutil.Process(child.pid).name()])", [1, "cat"]),
    ("beside(lambda child: (psutil.Process(child.pid).kill(), psutil.Process(child.pid).wait())[1])", -9),
]
ENDS = [
    ("python('sys.exit(3)'), python('os._exit(255)'), python('os.abort()')", [3, 255, -6]),
    ("[python(f'os.kill(os.getpid(), {n})') for n in (9, 15, 10, 11)]", [-9, -15, -10, -11]),
    ("exitcode(os._exit, 7), exitcode(os.abort), exitcode(sys.exit, 4), exitcode(time.sleep, 0)", [7, -6, 4, 0]),
    ("multiprocessing.get_context('fork').Pool(2).map(abs, [-1, -2, -3])", [1, 2, 3]),
    ("multiprocessing.get_context('spawn').Pool(1).apply(os.getppid)", 1),
    ("os.waitstatus_to_exitcode(os.waitpid(os.posix_spawnp('sh', ['sh', '-c', 'exit 5'], os.environ), 0)[1])", 5),
    ("subprocess.run(['sh', '-c', 'kill -TERM $$']).returncode, subprocess.call('false')", [-15, 1]),
    ("caught(signal.SIGUSR1, lambda: os.kill(os.getpid(), signal.SIGUSR1))", True),
    ("caught(signal.SIGALRM, lambda: signal.setitimer(signal.ITIMER_REAL, 0.01))", True),
    ("caught(signal.SIGCHLD, lambda: python('pass'))", True),
    ("os.kill(1, signal.SIGKILL)", None),  # the kernel spares the first process of a pid namespace
]
OWN_ENDS = [
    ("os._exit(0)", "exited without providing a reason"),
    ("os._exit(3)", "exit status 3"),
    ("os._exit(255)", "exit status 255"),
    ("os.abort()", "signal: aborted"),
    ("ctypes.string_at(0)", "signal: segmentation fault"),
]


@pytest.fixture(scope="module", params=PATHS)
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ledger_of_module: None
) -> Iterator[RunningDaemon]:
    """A daemon that takes the ways of a path, and has psutil from uv's own index."""
    config, kernel, roots = PATHS[request.param]
    if KERNEL and config:
        pytest.skip("the whole suite takes the ways of one kernel")
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("daemon") / "state", config)
    try:
        ways = Ways.find(kernel, roots)
        if not KERNEL:
            assert {**daemon.status()["kernel"], **ways.words()} == daemon.status()["kernel"]
        daemon.deploy("processes", {"f.py": HANDLER, "requirements.txt": "psutil"})
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()


@pytest.mark.parametrize(("source", "expected"), [*OWN, *PSUTIL, *ENDS])
def test_a_function_finds_the_same_on_each_path(daemon: RunningDaemon, source: str, expected: Any) -> None:
    assert daemon.call("processes", source) == expected


@pytest.mark.parametrize(("source", "words"), OWN_ENDS)
def test_how_a_function_ends_is_reported_on_each_path(daemon: RunningDaemon, source: str, words: str) -> None:
    answer = daemon.run("processes", source)
    assert answer.status == 502 and words in answer.json["errorMessage"], answer
