"""G5: the daemon's own system calls fail, as they do on a machine that is full."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sockd.linux import mounts, syscalls
from tests.daemon.running import COMMAND, DeployFailed
from tests.faults.daemon.lives import GONE, Lives
from tests.faults.daemon.telling import TYPED
from tests.support.cases import Happened, case
from tests.support.private_worker import Answer, PrivateWorker
from tests.support.servers.package_index import PackageIndex

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

MB = 1 << 20
ATTACH_S = 10.0
ROUNDS = 12
REFUSED = {
    "InsufficientStorageException",
    "ServiceUnavailableException",
    "Host.Failed",
    "InvalidZipFileException",
    "Sandbox.Failed",
}
"""What a deploy may be refused with."""
INJECTED: dict[str, tuple[str, ...]] = {
    "EMFILE": ("socketpair", "pipe2", "accept4", "openat"),
    "ENOMEM": ("clone3,clone,vfork,fork", "mmap", "open_tree", "move_mount", "fsopen", "sendmsg"),
    "EIO": ("pwrite64", "pread64", "fsync,fdatasync", "syncfs"),
    "ENOSPC": ("mkdir,mkdirat", "rename,renameat,renameat2", "pwrite64"),
}


@contextmanager
def injecting(pid: int, calls: str, error: str) -> Iterator[None]:
    """Let every third of these calls fail, in all threads of a process, until the end of the block."""
    command = ["strace", "-f", "-o", "/dev/null", "-p", str(pid), "-e", f"trace={calls}"]
    command += ["-e", f"inject={calls}:error={error}:when=2+3"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        timer = threading.Timer(ATTACH_S, strace.kill)
        timer.start()
        for line in strace.stderr:
            if "attached" in line:
                break
        timer.cancel()
        assert strace.poll() is None, "strace did not attach"
        try:
            yield
        finally:
            strace.terminate()


def reported(answer: Answer) -> str:
    return "answered" if answer.status == 200 else answer.error


@case(
    "G5",
    "EMFILE, ENOMEM, EIO, ENOSPC in every third of the daemon's calls (strace), few descriptors, a full file system",
    expect="each request and deploy succeeds or has a typed error; the daemon lives; afterwards all is well",
    default=False,
)
@pytest.mark.parametrize("error", INJECTED)
def test_injected_errors(worker: PrivateWorker, happened: Happened, error: str) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    came: Counter[str] = Counter()
    mark = worker.daemon.mark
    for calls in INJECTED[error]:
        worker.deploy("victim", "import os\ndef f(event):\n    if event == 'end': os._exit(1)\n    return event")
        with injecting(worker.daemon.pid, calls, error):
            for number in range(ROUNDS):
                came[attempt(worker, number)] += 1
                came[attempt(worker, "end")] += 1
            came[deploy(worker, calls)] += 1
        assert worker.alive, (calls, error)
        assert worker.call("victim", 5) == 5, (calls, error)
        worker.deploy("victim", "def f(event): return 'new'")
        assert worker.call("victim") == "new", (calls, error)
    happened(f"{error}: {', '.join(f'{count} {what}' for what, count in came.most_common())}")
    # Tracebacks of what was injected are as they should be: the errors are in the log for its readers.
    worker.daemon.lines[mark:] = [line for line in worker.daemon.lines[mark:] if "Traceback" not in line]


def attempt(worker: PrivateWorker, event: object) -> str:
    try:
        answer = worker.invoke("victim", event)
    except GONE:
        return "connection lost"
    assert answer.status == 200 or answer.error in TYPED | {"Host.Failed"}, answer
    assert answer.status != 200 or answer.json == event, answer
    return reported(answer)


def deploy(worker: PrivateWorker, text: str) -> str:
    try:
        worker.deploy("other", f"# {text}\ndef f(event): return event")
    except DeployFailed as failed:
        assert failed.type in REFUSED, failed
        return f"deploy: {failed.type}"
    except (*GONE, IndexError, ValueError):
        return "deploy: connection lost"
    return "deployed"


@case("G5", "", expect="", default=False)
def test_few_descriptors(state: Path, index: PackageIndex, happened: Happened) -> None:
    """The hard limit is so low that a handful of idle sandboxes would take all: the daemon keeps fewer of them."""
    command = ("prlimit", "--nofile=600:600", *COMMAND)
    lives = Lives(state, index, "[sandbox]\npause_after_s = 10\n", command=command)
    try:
        daemon = lives.start()
        came: Counter[str] = Counter()
        for number in range(60):
            try:
                daemon.deploy(f"f{number}", f"def f(event): return {number}")
                answer = daemon.run(f"f{number}")
                assert answer.status == 200 or answer.json["errorType"] in TYPED, answer
                assert answer.status != 200 or answer.json == number
                came["answered" if answer.status == 200 else answer.json["errorType"]] += 1
            except DeployFailed as failed:
                came[f"deploy: {failed.type}"] += 1
            except GONE:
                came["connection lost"] += 1
        happened(f"600 descriptors: {', '.join(f'{count} {what}' for what, count in came.most_common())}")
        assert came["answered"] == 60, came
        assert daemon.call("f0") == 0
        assert daemon.terminate() == 0
    finally:
        lives.close()


@case("G5", "", expect="", default=False)
def test_a_full_file_system(state: Path, index: PackageIndex, happened: Happened) -> None:
    state.mkdir()
    tmpfs = syscalls.new_filesystem("tmpfs", {"size": str(24 * MB)}, mounts.PRIVATE_TMP)
    with mounts.owned(tmpfs):
        syscalls.move_mount(tmpfs, syscalls.AT_FDCWD, str(state))
    lives = Lives(state, index)
    try:
        daemon = lives.start()
        daemon.deploy("kept", "def f(event): return 'old'")
        refused = ""
        for number in range(40):
            try:
                daemon.deploy("kept", {"f.py": f"def f(event): return {number}", "data": os.urandom(5 * MB)})
            except DeployFailed as failed:
                refused = f"{failed.status} {failed.type}: {failed.message}"
                break
        assert refused.startswith("507 InsufficientStorageException"), refused
        assert daemon.call("kept") == number - 1
        happened(f"a full file system: {refused}; the version before serves")
        lives.kill()
        lives.start()
        assert lives.daemon.call("kept") == number - 1
        happened(f"killed and started again there: {lives.reported}")
        assert lives.daemon.terminate() == 0
    finally:
        lives.close()
        subprocess.run(["umount", "-l", str(state)], check=True)
