"""A kernel without CONFIG_CHECKPOINT_RESTORE, which does not say where a thread's id is: the worker finds it without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sockd.linux.seccomp.compiler import RET_ALLOW, RET_ERRNO
from tests.daemon.running import COMMAND, REPO, RunningDaemon

pytestmark = pytest.mark.root

WITHOUT = f"""
import errno, os, struct, sys
from sockd_zygote import _native
load, unless_equal, answer = 0x20, 0x15, 0x06
prctl, get_tid_address = 157, 40
program = (
    (load, 0, 0, 0), (unless_equal, 0, 3, prctl), (load, 0, 0, 16), (unless_equal, 0, 1, get_tid_address),
    (answer, 0, 0, {RET_ERRNO} | errno.EINVAL), (answer, 0, 0, {RET_ALLOW}),
)
_native.install_filter(b"".join(struct.pack("<HBBI", *each) for each in program))
os.execv(sys.argv[1], sys.argv[1:])
"""
IDS = """\
import os, threading, time
def f(event):
    by_clock = ~(time.pthread_getcpuclockid(threading.get_ident()) >> 3)  # of the id that glibc keeps
    other = []
    thread = threading.Thread(target=lambda: other.append(threading.get_native_id()))
    thread.start()
    thread.join()
    return [by_clock == os.getpid() == threading.get_native_id(), other[0] != os.getpid()]
"""


def test_threads_of_a_forked_sandbox_have_their_ids(tmp_path: Path) -> None:
    daemon = RunningDaemon.start(tmp_path / "state", command=(sys.executable, "-c", WITHOUT, *COMMAND))
    try:
        daemon.deploy("ids", IDS)
        assert daemon.call("ids") == [True, True]
    finally:
        daemon.close()


def test_the_doctor_finds_that_a_zygote_can_fork() -> None:
    probe = (sys.executable, "-m", "sockd.client.cli.doctor.probes", "thread_id_address")
    subprocess.run([sys.executable, "-c", WITHOUT, *probe], cwd=REPO, check=True)
