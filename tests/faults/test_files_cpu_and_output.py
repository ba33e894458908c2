"""Functions that take /tmp, descriptors, CPU time and the daemon's ear without end."""

from __future__ import annotations

import pytest

from tests.daemon.kernel_view import open_fds, rss_kb
from tests.faults.exhausting import DESCRIPTORS, FILL_TMP, INODES, LOG_AFTER_ANSWER, SPINNERS, STDOUT_FLOOD
from tests.faults.watching import attack, disk_usage
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.threads import at_once

pytestmark = pytest.mark.root

MB = 1 << 20
GB = 1 << 30


@case("D4", "/tmp filled with one file", expect="ENOSPC at tmp_mb, and not a byte of the host's disk")
def test_a_full_tmp_is_the_function_s_own_affair(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("fill", FILL_TMP, tmp_mb=16, memory_mb=64)
    with attack(worker, happened) as watch:
        before = disk_usage(worker.daemon.state)
        for _ in watch.rounds():
            written, words, free = worker.call("fill")
        grown = disk_usage(worker.daemon.state) - before
    happened(f"{words!r} after {written / MB:.1f} MB with {free} bytes free; the state directory grew by {grown} bytes")
    assert words == "No space left on device"
    assert 15 * MB < written <= 16 * MB and free == 0
    assert grown < MB


@case("D5", "a million empty files", expect="ENOSPC at tmp_inodes")
def test_inodes_are_limited(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("inodes", INODES, tmp_inodes=2000)
    with attack(worker, happened) as watch:
        for _ in watch.rounds():
            made, words = worker.call("inodes")
    happened(f"{words!r} after {made} files")
    assert words == "No space left on device" and made < 2000


@case("D6", "files, sockets and memfds opened without end, by four at once", expect="EMFILE inside, only there")
def test_descriptors_are_limited(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("fds", DESCRIPTORS, open_files=200)
    with attack(worker, happened) as watch:
        before = len(open_fds(worker.daemon.pid))
        for _ in watch.rounds():
            answers = at_once(4, lambda n: worker.call("fds"))
        daemon = len(open_fds(worker.daemon.pid)) - before
    happened(f"{answers[0]}; descriptors of the daemon: {daemon:+d} (it holds ten for each sandbox)")
    assert answers == [[[196, "Too many open files"]] * 3] * 4
    assert daemon <= 60


@case("D7", "64 threads that spin for a second", expect="they get the function's cpus and no more")
def test_spinning_threads_get_their_share(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("spin", SPINNERS, cpus=0.5, timeout_s=20)
    with attack(worker, happened):
        answer = worker.invoke("spin", 1.0)
    assert answer.status == 200, answer.body
    happened(f"{answer.json:.2f} s of CPU time in {answer.ms / 1000:.2f} s")
    assert answer.json <= 0.5 * answer.ms / 1000 + 0.15


@case("D8", "1 GB to stdout, and a thread that shouts after the answer", expect="truncated, marked; no memory of ours")
def test_a_flood_of_output_costs_the_daemon_no_memory(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("flood", STDOUT_FLOOD, timeout_s=15, log_bytes=64 * 1024)
    worker.deploy("shout", LOG_AFTER_ANSWER, cpus=0.5)
    with attack(worker, happened):
        before = rss_kb(worker.daemon.pid)
        answer = worker.invoke("flood", GB)
        grown = rss_kb(worker.daemon.pid) - before
        (record,) = worker.daemon.logs("flood")
        assert worker.call("shout") == 1
    kept, dropped = len(record["text"]), record["dropped_bytes"]
    happened(f"{answer.ms / 1000:.1f} s; {kept} bytes kept, {dropped} marked as dropped; the daemon grew by {grown} KB")
    assert (answer.status, answer.json) == (200, GB)
    assert kept == 64 * 1024 and kept + dropped == GB
    assert grown < 10 * 1024
