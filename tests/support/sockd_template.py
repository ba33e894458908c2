"""`python -m sockd` as a process that is forked with its modules imported: this costs a tenth of a new interpreter's start.

`start` is `subprocess.Popen` for commands that begin with INTERPRETER. The first call starts the template, a process that imports
what commands and workers import, and then waits. For each start it makes a process by clone(2) with CLONE_PARENT, so that the new
process is a child of this process, with descriptors, environment and directory as given to Popen.

A command gets an interpreter of its own if its process would differ before its first line of Python: other preloaded libraries,
namespaces, limits. Tests of imports, of their cost and of an interpreter's memory start `sys.executable` by themselves.

Owns the template, which ends with this process. It belongs to the run, not to a test (`ledger.belongs_to_the_run`)."""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sockd.linux.syscall_table import NUMBERS
from tests.support import ledger

REPOSITORY = Path(__file__).resolve().parents[2]
INTERPRETER = (sys.executable, "-m", "sockd")
BEFORE_PYTHON = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "OPENSSL_", "SSL_")
"""Variables that begin so are read while an interpreter starts and imports."""
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid_for_children", "user", "uts")
LIMITS = tuple(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))
LARGEST = 1 << 17

_PARENT, _SET_TID, _CLEAR_TID = 0x8000, 0x0100_0000, 0x0020_0000
_PR_GET_TID_ADDRESS = 40
_THREAD_WORDS = 256


def start(command: Sequence[str], *, env: Mapping[str, str] | None = None, **given: Any) -> subprocess.Popen[Any]:
    """As `subprocess.Popen`, of a program that may be sockd."""
    env = dict(os.environ if env is None else env)
    if tuple(command[: len(INTERPRETER)]) == INTERPRETER and surroundings(env) == _template().surroundings:
        return _Forked(command, env=env, **given)
    return subprocess.Popen(command, env=env, **given)


def run(
    command: Sequence[str], *, input: str | None = None, timeout: float = 60, check: bool = False, **given: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` that captures text, of a program that may be sockd."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    with start(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **given) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


def surroundings(env: Mapping[str, str]) -> tuple[object, ...]:
    """What a process has before its first line of Python, and a forked one would have of the template's."""
    variables = tuple(sorted((name, value) for name, value in env.items() if name.startswith(BEFORE_PYTHON)))
    namespaces = tuple(os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES)
    limits = tuple(resource.getrlimit(number) for number in LIMITS)
    cgroups = Path("/proc/self/cgroup").read_text()
    umask = os.umask(0o77)
    os.umask(umask)
    return variables, namespaces, limits, cgroups, umask, os.getresuid(), os.getresgid(), os.sched_getaffinity(0)


class _Template:
    """The process that is forked."""

    def __init__(self) -> None:
        self.surroundings = surroundings(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.sockd_template", str(theirs.fileno())],
                cwd=REPOSITORY,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        fd = self._socket.fileno()
        ledger.belongs_to_the_run("process", str(process.pid))
        ledger.belongs_to_the_run("fd", f"{fd} -> " + os.readlink(f"/proc/self/fd/{fd}"))

    def fork(self, request: Mapping[str, object], stdio: Sequence[int]) -> int:
        """The pid of a new child of this process."""
        message = json.dumps(request).encode()
        assert len(message) <= LARGEST
        # By os and not socket functions: those must not block a thread that runs an event loop (conftest, BlockBuster).
        socket.send_fds(self._socket, [message], stdio)
        answer = os.read(self._socket.fileno(), 64)
        assert answer, "the template of sockd's processes has ended"
        return int(answer)


_template = functools.cache(_Template)


class _Forked(subprocess.Popen[Any]):
    """Popen that asks the template instead of the kernel."""

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        # In the order of CPython 3.11 to 3.13; the end differs in later ones.
        (_, _, _, _, cwd, env, _, _, _, *pipes), (*_, session, _) = given[:15], given
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        request = {
            "arguments": [os.fspath(each) for each in args[len(INTERPRETER) :]],
            "environment": env,
            "directory": os.fspath(cwd or os.getcwd()),
            "session": session,
        }
        stdio = [own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = _template().fork(request, stdio)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _serve(link: socket.socket) -> None:
    """Fork for each request. Returns in the processes that are forked, and never in the template."""
    gc.disable()
    import sockd.worker.life.run  # noqa: F401
    from sockd.client.cli.main import COMMANDS

    for module in {module for module, _ in COMMANDS.values()}:
        import_module(module)
    gc.collect()
    gc.freeze()
    while True:
        message, fds, _, _ = socket.recv_fds(link, LARGEST, 3)  # noqa: TID251  nothing is executed here
        if not message:
            os._exit(0)
        pid = _fork_for_parent()
        if pid == 0:
            link.close()
            _become(json.loads(message), fds)
            return
        link.send(str(pid).encode())
        for fd in fds:
            os.close(fd)


def _fork_for_parent() -> int:
    """fork(2), but the new process is a child of this process's parent."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    address = _tid_address(libc)
    python.PyOS_BeforeFork()
    # SAFETY: without CLONE_VM and with no stack this is fork. There is one thread, so no lock of libc is held.
    last = (
        (address, 0) if os.uname().machine == "x86_64" else (0, address)
    )  # elsewhere the thread's storage comes first
    pid = int(libc.syscall(NUMBERS["clone"], _PARENT | _SET_TID | _CLEAR_TID, 0, 0, *last))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    assert pid >= 0
    return pid


def _tid_address(libc: ctypes.PyDLL) -> ctypes.c_void_p:
    """The address of the thread's id in libc's memory, which fork(3) updates by the same two flags."""
    address = ctypes.c_void_p()
    # SAFETY: the kernel writes an address to it.
    if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) == 0:
        return address
    # The kernel is without CONFIG_CHECKPOINT_RESTORE. glibc makes the number of the thread's clock of the id.
    pid, thread = os.getpid(), threading.get_ident()
    # SAFETY: glibc's structure of a thread is larger.
    words = (ctypes.c_int * _THREAD_WORDS).from_address(thread)
    for number, word in enumerate(words):
        if word == pid:
            words[number] = 1
            is_place = ~(time.pthread_getcpuclockid(thread) >> 3) == 1
            words[number] = pid
            if is_place:
                return ctypes.c_void_p(ctypes.addressof(words) + number * ctypes.sizeof(ctypes.c_int))
    raise AssertionError("glibc keeps the thread's id elsewhere")


def _become(request: Mapping[str, Any], stdio: Sequence[int]) -> None:
    """Be the process that was asked for."""
    if request["session"]:
        os.setsid()
    for own, fd in enumerate(stdio):
        os.dup2(fd, own)
        os.close(fd)
    os.chdir(request["directory"])  # noqa: TID251  as exec's caller would, in a process of one thread
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    tempfile.tempdir = None
    sys.path[0] = request["directory"]
    sys.argv = [str(REPOSITORY / "sockd" / "__main__.py"), *request["arguments"]]
    gc.enable()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from sockd.client.cli.main import main

    main()
