"""Group A: out of a sandbox's root: by chroot, descriptors, handles, links, and names that change meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.attack import NOBODYS, attack, files, in_zygote
from tests.abuse.prelude import (
    AT_FDCWD,
    in_child,
    outcome,
    read,
    readable,
    refusal,
    syscall,
    top,
)
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.threads import at_once


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file of the host that everybody there may read."""
    directory = Path(tempfile.mkdtemp(prefix="sockd-secret-", dir="/tmp"))
    directory.chmod(0o755)
    file = directory / "secret"
    file.write_text("hunter2")
    file.chmod(0o644)
    yield file
    shutil.rmtree(directory)


@case(
    "A1", "chroot again, then fchdir up thirty times", expect="EPERM for a handler; never more than the farm's own root"
)
def test_a_second_chroot_leads_nowhere(worker: PrivateWorker, happened: Happened) -> None:
    def escape(event: Any) -> Any:
        above = os.open("/", os.O_RDONLY)
        os.makedirs(os.environ.get("TMPDIR", "/tmp") + "/jail", exist_ok=True)
        jail = os.environ.get("TMPDIR", "/tmp") + "/jail"

        def try_it() -> Any:
            result = outcome(lambda: os.chroot(jail))
            os.fchdir(above)
            return [result, top()]

        return in_child(try_it)

    refused, names = attack(worker, escape)
    happened(f"a handler's chroot: {refused}, {len(names)} names")
    assert refused == "EPERM"
    assert not NOBODYS & set(names) and "var" in names
    allowed, names = in_zygote(worker, escape)
    happened(f"a Zygote's package: {allowed}, {len(names)} names, none of the host")
    assert not NOBODYS & set(names) and "packages" in names


def look_at_descriptors(event: Any) -> Any:
    """Each open descriptor and what it is."""
    found = {}
    listing = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []
    for fd in range(4096):
        try:
            status = os.fstat(fd)
        except OSError:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            target = "?"
        found[str(fd)] = [target, status.st_mode]
    return found, sorted(map(int, listing))


@case("A2", "fstat and readlink of descriptors 0 to 4095", expect="0, 1, 2 and one channel, nothing of the host")
def test_a_sandbox_has_stdio_and_one_channel(worker: PrivateWorker, happened: Happened) -> None:
    origins = set()
    for network in ("host", "none"):  # a spare, if there is one; and a fork of its own
        worker.deploy(f"fds-{network}", files(look_at_descriptors), network=network)
        answer = worker.invoke(f"fds-{network}")
        found = answer.json[0]
        origins.add(answer.headers["x-sockd-origin"])
        assert set(found) == {"0", "1", "2", "3"}, found
        assert found["0"][0] == "/dev/null" and stat.S_ISFIFO(found["1"][1]) and stat.S_ISSOCK(found["3"][1]), found
    happened(f"handler: {sorted(origins)} have {sorted(found)}")
    found = in_zygote(worker, look_at_descriptors)[0]
    happened(f"Zygote: {', '.join(f'{fd} {target}' for fd, (target, _) in found.items())}")
    named = sorted(target for target, _ in found.values() if not target.startswith(("/packages/", "/dev/null")))
    # The wire; a memory file with what to import, for this Zygote alone; the roots of the farm and of its own tree.
    assert named[:3] == ["/", "/", "/memfd:import (deleted)"] and named[3].startswith("socket:") and len(named) == 4


def read_through_descriptors(paths: Any) -> Any:
    """Files read by way of every descriptor there is, as a directory and by /proc."""
    got, tried, errors = [], 0, set()
    for fd in range(1024):
        try:
            os.fstat(fd)
        except OSError:
            continue
        for path in paths:
            for name in ("../" * 12 + path.lstrip("/"), path):
                tried += 1
                try:
                    new = os.open(name, os.O_RDONLY, dir_fd=fd)
                    got.append(f"{fd}: {os.read(new, 100)!r}")
                    os.close(new)
                except OSError as error:
                    errors.add(errno.errorcode[error.errno or 0])
            got += readable([f"/proc/self/fd/{fd}/{path}", f"/proc/self/fd/{fd}/../../../..{path}"])
    return got, tried, sorted(errors)


@case(
    "A3", "openat(fd, '../../../../etc/shadow') by way of every descriptor", expect="ENOENT, ENOTDIR or EPERM; no byte"
)
def test_no_descriptor_leads_to_the_host(worker: PrivateWorker, happened: Happened, secret: Path) -> None:
    paths = [
        "/etc/shadow",
        "/etc/hostname",
        "/etc/machine-id",
        str(secret),
        str(worker.daemon.state / "registry.sqlite"),
    ]
    for who, (got, tried, errors) in {
        "handler": attack(worker, read_through_descriptors, paths),
        "Zygote": in_zygote(worker, read_through_descriptors, paths),
    }.items():
        happened(f"{who}: {tried} tries, {', '.join(errors)}, {len(got)} read")
        assert got == [] and tried


def open_by_handle(event: Any) -> Any:
    """The way of "shocker": handles of inodes 1 to 200 of every mount there is, and of the root by its name."""
    name_to_handle_at, open_by_handle_at = 303, 304
    handle, mount_id = struct.pack("Ii", 128, 0) + bytes(128), bytes(8)
    results = {"name_to_handle_at " + refusal(name_to_handle_at, AT_FDCWD, b"/", handle, mount_id, 0): 1}
    for directory in ("/", "/usr", "/tmp", "/packages", "/dev", "/proc"):
        try:
            fd = os.open(directory, os.O_RDONLY)
        except OSError:
            continue
        for inode in range(1, 201):
            for kind, body in ((1, struct.pack("<II", inode, 0)), (0x81, struct.pack("<QI", inode, 0))):
                handle = struct.pack("Ii", len(body), kind) + body
                answer = "open_by_handle_at " + refusal(open_by_handle_at, fd, handle, os.O_RDONLY)
                results[answer] = results.get(answer, 0) + 1
        os.close(fd)
    return results


@case("A4", "name_to_handle_at, and open_by_handle_at with 2 400 guessed handles", expect="EPERM or ENOSYS, each time")
def test_no_handle_opens_a_file(worker: PrivateWorker, happened: Happened) -> None:
    for who, results in (("handler", attack(worker, open_by_handle)), ("Zygote", in_zygote(worker, open_by_handle))):
        happened(f"{who}: {', '.join(f'{answer} x{count}' for answer, count in results.items())}")
        assert all(answer.endswith((" EPERM", " ENOSYS")) for answer in results)


@case("A6", "symbolic links in /tmp to host paths", expect="each leads to the sandbox's own tree, or nowhere")
def test_links_in_tmp_stay_inside(worker: PrivateWorker, happened: Happened, secret: Path) -> None:
    def follow(event: Any) -> Any:
        found = {}
        for number, target in enumerate(event):
            link = f"{os.environ.get('TMPDIR', '/tmp')}/link-{number}"
            os.symlink(target, link)
            try:
                found[target] = sorted(os.listdir(link)) if os.path.isdir(link) else read(link, 100).decode()
            except OSError as error:
                found[target] = errno.errorcode[error.errno or 0]
        return found

    targets = [
        str(secret),
        "../" * 20 + str(secret).lstrip("/"),
        "/proc/1/root" + str(secret),
        str(worker.daemon.state),
    ]
    targets += ["/etc/shadow", "../" * 20 + "etc/shadow", "/", "../../../../../../"]
    for who, found in (("handler", attack(worker, follow, targets)), ("Zygote", in_zygote(worker, follow, targets))):
        happened(f"{who}: {sorted({str(found[target]) for target in targets[:6]})}; / has {len(found['/'])} names")
        assert all(found[target] in ("ENOENT", "EACCES") for target in targets[:6]), found
        assert not NOBODYS & {*found["/"], *found["../../../../../../"]}


@case(
    "A9",
    "exchange names in /tmp and in a Zygote's scratch 1 000 times while sandboxes are made",
    expect="no other root changes",
)
def test_renames_in_one_sandbox_do_not_reach_the_making_of_others(
    worker: PrivateWorker, happened: Happened, secret: Path
) -> None:
    def race(event: Any) -> Any:
        import time

        base = os.environ.get("TMPDIR", "/tmp") + "/race"
        os.makedirs(base + "/task")
        os.symlink(event[0], base + "/link")
        rounds, ends = 0, time.monotonic() + event[1]
        while rounds < 1000 or time.monotonic() < ends:
            rounds += 1
            exchange = 2
            syscall(316, AT_FDCWD, f"{base}/task".encode(), AT_FDCWD, f"{base}/link".encode(), exchange)
            with contextlib.suppress(OSError):
                os.rename("/tmp", "/tmp.old")
            with contextlib.suppress(OSError):
                os.symlink(event[0], "/var/task")
        return rounds

    worker.deploy("racer", files(race), timeout_s=15)
    looks = "import os\ndef f(event): return [os.listdir('/tmp'), os.listdir('/var/task'), os.path.exists(event)]\n"
    for number in range(10):
        worker.deploy(f"looks-{number}", f"x = {number}\n{looks}")
    rounds: list[int] = []
    racing = threading.Thread(target=lambda: rounds.append(worker.call("racer", [str(secret.parent), 1.5])))
    racing.start()
    seen = at_once(4, lambda n: [worker.call(f"looks-{each}", str(secret)) for each in range(n, 10, 4)])
    racing.join()
    rounds.append(in_zygote(worker, race, [str(secret.parent), 0.0]))
    happened(f"{rounds[0]} rounds in a sandbox, {rounds[1]} in a Zygote; 10 roots made meanwhile were whole")
    assert all(tmp == [] and "f.py" in task and not reached for four in seen for tmp, task, reached in four), seen
    assert secret.read_text() == "hunter2" and os.listdir(secret.parent) == ["secret"]
