"""A machine: the emulator's process from its start to its end, and what the guest says meanwhile.

The emulator runs in a pid namespace of its own, so that it ends with all of its processes whatever ends this one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vm.debian import CONTAINED, VmError
from vm.emulators import Emulator, Ends, Files

LAST_LINES = 25
NO_MAPPINGS = "UML ran out of memory on the host side"
PANIC = "Kernel panic - not syncing"
LOOK_S = 5.0
"""Between looks at the console: a kernel that has panicked says nothing else, and user-mode-linux may then spin."""
OFF_S = 30
"""After its status a guest has this long to power off."""
SCHED_SETATTR = 314
SCHED_ATTR = struct.Struct("<IIQiIQQQ")
"""sched(7): size, policy, flags, nice, priority, and the slice in the place of a deadline's run time."""
SLICE_NS = 100_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a machine may use."""

    memory_mb: int
    boot_s: int
    command_s: int


@contextlib.contextmanager
def preparing(cache: Path) -> Iterator[None]:
    """Be the only one that makes something in the cache; others wait. Parts are removed that a killed one has left."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for part in [*cache.glob("part-*"), *cache.glob("kernels/part-*")]:
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        yield


@contextlib.contextmanager
def run_directory(cache: Path) -> Iterator[Path]:
    """A directory for the files of one machine. Those whose process was killed are removed by the next one."""
    runs = cache / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    for stale in runs.iterdir():
        with (stale / "lock").open("a") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(stale)
    directory = Path(tempfile.mkdtemp(dir=runs))
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield directory
        finally:
            shutil.rmtree(directory)


def run_machine(emulator: Emulator, files: Files, bounds: Bounds) -> int:
    """Boot, run the command, and power off; the command's output goes to this process's.

    Returns: the command's status. Raises: VmError: the guest did not boot, or was lost; TimeoutError: a bound was reached."""
    with contextlib.ExitStack() as stack:
        words_fd, guests_fd = os.pipe()
        stack.callback(os.close, words_fd)
        with open(guests_fd, "wb") as words, files.console.open("wb") as console:
            ends = Ends(console.fileno(), words.fileno())
            command = emulator.command(
                files, bounds.memory_mb, ends, stack.enter_context(emulator.network(files.directory))
            )
            process = subprocess.Popen(
                (*CONTAINED, *command),
                stdin=subprocess.DEVNULL,
                pass_fds=ends,
                env=os.environ | emulator.environment(files, bounds.memory_mb),
                start_new_session=True,  # a terminal's ^C is for this process, which ends it
            )
        try:
            status = _status(words_fd, files, bounds)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(OFF_S)
            _tell_of_killed_processes(files)
            return status
        finally:
            process.kill()
            process.wait()


def _status(fd: int, files: Files, bounds: Bounds) -> int:
    began = time.monotonic()
    release = _word(fd, "booted", bounds.boot_s, files)
    print(f"vm: Linux {release} booted in {time.monotonic() - began:.0f} s", flush=True)
    return int(_word(fd, "status", bounds.command_s, files))


def _word(fd: int, word: str, seconds: int, files: Files) -> str:
    """What the guest says behind a word."""
    poller, deadline, line = select.poll(), time.monotonic() + seconds, b""
    poller.register(fd, select.POLLIN)
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f'the guest did not say "{word}" within {seconds} s\n{_console(files)}')
        if not poller.poll(min(left, LOOK_S) * 1000):
            if PANIC in _printed(files):
                raise VmError(f'the guest\'s kernel panicked before it said "{word}"\n{_console(files)}')
            continue
        # One byte at a time: what comes behind the line belongs to the next word.
        byte = os.read(fd, 1)
        if not byte:
            raise VmError(f'the machine ended before the guest said "{word}"\n{_console(files)}')
        line += byte
    said, _, value = line.decode(errors="replace").strip().partition(" ")
    if said != word:
        raise VmError(f'the guest said "{said}" instead of "{word}"\n{_console(files)}')
    return value


def _tell_of_killed_processes(files: Files) -> None:
    """Print why user-mode-linux killed processes: each page of one is a mapping of the host, which bounds their number."""
    if NO_MAPPINGS in _printed(files):
        print("vm: the guest killed processes that had more pages than this host allows mappings; raise it there:")
        print("vm: sysctl vm.max_map_count=1048576", flush=True)


def _console(files: Files) -> str:
    return "\n".join(("the last lines of its console:", *_printed(files).splitlines()[-LAST_LINES:]))


def _printed(files: Files) -> str:
    """What the kernel has printed."""
    return files.console.read_text(errors="replace") if files.console.exists() else ""


def run_in_short_slices() -> None:
    """Have this process and what it starts run often and briefly, if the kernel can (Linux 6.12): it gets no more time by that.

    Each system call in user-mode-linux switches between processes twice, and each would wait for the others on a busy host."""
    attributes = SCHED_ATTR.pack(SCHED_ATTR.size, 0, 0, os.getpriority(os.PRIO_PROCESS, 0), 0, SLICE_NS, 0, 0)
    # SAFETY: the kernel reads the attributes during the call. It refuses what it does not know, which changes nothing.
    ctypes.CDLL(None).syscall(SCHED_SETATTR, 0, attributes, 0)


def raise_at_signals() -> None:
    """Have SIGTERM and SIGHUP end this process as SIGINT does, through everything that cleans up."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
