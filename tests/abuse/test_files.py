"""Group A: from a sandbox, or from a package in a Zygote, to a file of the host or of somebody else."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import shutil
import stat
import struct
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.attack import attack, files, in_zygote
from tests.abuse.prelude import (
    AT_FDCWD,
    in_child,
    outcome,
    read,
    readable,
    refusal,
    syscall,
    top,
    visible_pids,
)
from tests.daemon.running import DeployFailed, at_once, zipped
from tests.support.cases import Happened, case
from tests.support.package_index import wheel
from tests.support.private_worker import PrivateWorker

NOBODYS = {"home", "root", "boot", "mnt", "srv", "sys", "media"} - {Path(os.path.realpath(sys.base_prefix)).parts[1]}
"""Names in a host's root that no sandbox has, unless the interpreter is there."""


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
def test_a_second_chroot_leads_nowhere(house: PrivateWorker, happened: Happened) -> None:
    def escape(event: Any) -> Any:
        above = os.open("/", os.O_RDONLY)
        os.makedirs(os.environ.get("TMPDIR", "/tmp") + "/jail", exist_ok=True)
        jail = os.environ.get("TMPDIR", "/tmp") + "/jail"

        def try_it() -> Any:
            result = outcome(lambda: os.chroot(jail))
            os.fchdir(above)
            return [result, top()]

        return in_child(try_it)

    refused, names = attack(house, escape)
    happened(f"a handler's chroot: {refused}, {len(names)} names")
    assert refused == "EPERM"
    assert not NOBODYS & set(names) and "var" in names
    allowed, names = in_zygote(house, escape)
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
def test_a_sandbox_has_stdio_and_one_channel(house: PrivateWorker, happened: Happened) -> None:
    origins = set()
    for network in ("host", "none"):  # a spare, if there is one; and a fork of its own
        house.deploy(f"fds-{network}", files(look_at_descriptors), network=network)
        answer = house.invoke(f"fds-{network}")
        found = answer.json[0]
        origins.add(answer.headers["x-sockd-origin"])
        assert set(found) == {"0", "1", "2", "3"}, found
        assert found["0"][0] == "/dev/null" and stat.S_ISFIFO(found["1"][1]) and stat.S_ISSOCK(found["3"][1]), found
    happened(f"handler: {sorted(origins)} have {sorted(found)}")
    found = in_zygote(house, look_at_descriptors)[0]
    happened(f"Zygote: {', '.join(f'{fd} {target}' for fd, (target, _) in found.items())}")
    named = {fd: target for fd, (target, _) in found.items() if not target.startswith(("/packages/", "/dev/null"))}
    assert [fd for fd in named if named[fd].startswith("socket:")] == ["3"] and len(named) == 1, named


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
def test_no_descriptor_leads_to_the_host(house: PrivateWorker, happened: Happened, secret: Path) -> None:
    paths = [
        "/etc/shadow",
        "/etc/hostname",
        "/etc/machine-id",
        str(secret),
        str(house.daemon.state / "registry.sqlite"),
    ]
    for who, (got, tried, errors) in {
        "handler": attack(house, read_through_descriptors, paths),
        "Zygote": in_zygote(house, read_through_descriptors, paths),
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
def test_no_handle_opens_a_file(house: PrivateWorker, happened: Happened) -> None:
    for who, results in (("handler", attack(house, open_by_handle)), ("Zygote", in_zygote(house, open_by_handle))):
        happened(f"{who}: {', '.join(f'{answer} x{count}' for answer, count in results.items())}")
        assert all(answer.endswith((" EPERM", " ENOSYS")) for answer in results)


@case(
    "A5",
    "write to code, packages, base, /etc, /dev and over their files",
    expect="EROFS; the next instance is as deployed",
)
def test_software_cannot_be_changed(house: PrivateWorker, happened: Happened) -> None:
    def change(event: Any) -> Any:
        import json as module
        import sys

        import shared  # type: ignore[import-not-found]

        places = ["/", "/var/task", "/packages", os.path.dirname(shared.__file__), "/usr", "/usr/bin", "/usr/lib"]
        places += ["/etc", "/dev", "/opt/sockd", "/opt/sockd/zygote", "/run", sys.prefix, "/lib", "/var"]
        victims = ["/var/task/f.py", shared.__file__, module.__file__, "/opt/sockd/zygote/entry.py", "/etc/passwd"]
        tried = {f"new in {place}": outcome(os.open, f"{place}/new", os.O_CREAT | os.O_WRONLY) for place in places}
        for file in victims:
            tried[f"write {file}"] = outcome(os.open, file, os.O_RDWR)
            tried[f"unlink {file}"] = outcome(os.unlink, file)
            tried[f"chmod {file}"] = outcome(os.chmod, file, 0o777)
            tried[f"rename {file}"] = outcome(os.rename, file, file + ".old")
            tried[f"truncate {file}"] = outcome(os.truncate, file, 0)
        for link in ("/proc/self/exe", "/proc/1/exe", "/proc/self/root/usr/bin/env", "/proc/self/cwd/f.py"):
            tried[f"write {link}"] = outcome(os.open, link, os.O_RDWR)
        return tried

    package = wheel("shared", "1.0", {"shared.py": "VALUE = 'as installed'\n"})
    house.deploy("changer", {**files(change)}, requirements=["shared"], wheels=[package], concurrency=1, timeout_s=10)
    tried = house.call("changer")
    happened(f"{len(tried)} tries: {', '.join(sorted(set(tried.values())))}")
    assert set(tried.values()) <= {"EROFS", "EACCES", "EPERM", "ENOENT", "ETXTBSY"}, tried
    assert sum(answer == "EROFS" for answer in tried.values()) > len(tried) // 2, tried
    code = "import shared\ndef f(event): return [shared.VALUE, open('/var/task/f.py').read()]\n"
    house.deploy("reader", code, requirements=["shared"])
    assert house.call("reader") == ["as installed", code]


@case("A6", "symbolic links in /tmp to host paths", expect="each leads to the sandbox's own tree, or nowhere")
def test_links_in_tmp_stay_inside(house: PrivateWorker, happened: Happened, secret: Path) -> None:
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

    targets = [str(secret), "../" * 20 + str(secret).lstrip("/"), "/proc/1/root" + str(secret), str(house.daemon.state)]
    targets += ["/etc/shadow", "../" * 20 + "etc/shadow", "/", "../../../../../../"]
    for who, found in (("handler", attack(house, follow, targets)), ("Zygote", in_zygote(house, follow, targets))):
        happened(f"{who}: {sorted({str(found[target]) for target in targets[:6]})}; / has {len(found['/'])} names")
        assert all(found[target] in ("ENOENT", "EACCES") for target in targets[:6]), found
        assert not NOBODYS & {*found["/"], *found["../../../../../../"]}


@case(
    "A7", "deploy an image whose /dev, /proc, /tmp is a symbolic link", expect="the deploy is refused, with the reason"
)
def test_an_image_with_links_for_directories() -> None:
    pytest.skip("sockd has no images: a function is a directory or a zip")


def raw_zip(*entries: tuple[str, bytes, int]) -> bytes:
    """A zip whose entries have these names and st_modes, whatever they are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, mode in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename, info.create_system, info.external_attr = name, 3, mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return buffer.getvalue()


@functools.cache
def bomb() -> bytes:
    """A small zip of 300 MB of zeros that declares its true size."""
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("f.py", "def f(event): return 1")
            with archive.open("zeros", "w") as file:
                for _ in range(300):
                    file.write(bytes(1 << 20))
        return buffer.getvalue()


def understated(data: bytes) -> bytes:
    """The same zip, whose directory and headers say that the last file is 10 bytes long."""
    changed = bytearray(data)
    for signature, offset in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        place = data.rindex(signature)
        changed[place + offset : place + offset + 4] = struct.pack("<I", 10)
    return bytes(changed)


FILE = stat.S_IFREG | 0o644
GOOD = ("f.py", b"def f(event): return 1", FILE)
ARCHIVES: dict[str, Callable[[], bytes]] = {
    "../ in a name": lambda: raw_zip(GOOD, ("../x.py", b"x", FILE)),
    "../ inside a name": lambda: raw_zip(GOOD, ("a/../../../x.py", b"x", FILE)),
    "an absolute name": lambda: raw_zip(GOOD, ("/etc/cron.d/x", b"x", FILE)),
    "a backslash": lambda: raw_zip(GOOD, ("..\\x.py", b"x", FILE)),
    "a zero byte": lambda: raw_zip(GOOD, ("x\0.py", b"x", FILE)),
    "a symbolic link": lambda: raw_zip(GOOD, ("link", b"/etc/shadow", stat.S_IFLNK | 0o777)),
    "a file below a link": lambda: raw_zip(GOOD, ("d", b"/etc", stat.S_IFLNK | 0o777), ("d/x", b"x", FILE)),
    "a device": lambda: raw_zip(GOOD, ("null", b"", stat.S_IFCHR | 0o666)),
    "a FIFO": lambda: raw_zip(GOOD, ("pipe", b"", stat.S_IFIFO | 0o666)),
    "one name twice": lambda: raw_zip(GOOD, ("./f.py", b"x", FILE)),
    "file and directory": lambda: raw_zip(GOOD, ("a", b"x", FILE), ("a/b", b"x", FILE)),
    "100 000 entries": lambda: zipped({"f.py": "", **{f"n{number}": "" for number in range(100_000)}}),
    "a bomb of 300 MB": bomb,
    "a bomb that lies": lambda: understated(bomb()),
    "a truncated zip": lambda: zipped({"f.py": "def f(event): return 1"})[:-30],
    "a 300 byte name": lambda: raw_zip(GOOD, ("x" * 300, b"x", FILE)),
    "no zip at all": lambda: b"\x1f\x8b" + os.urandom(1000),
}


@case(
    "A8",
    "zips with ../, links, devices, 10^5 entries, bombs, lies",
    expect="each refused, with a reason; nothing unpacked",
)
def test_archives_are_refused_before_they_do_harm(house: PrivateWorker, happened: Happened) -> None:
    state = house.daemon.state
    before = sorted(os.listdir(state / "code"))
    free = shutil.disk_usage(state).free
    reasons = {}
    for name, make in ARCHIVES.items():
        with pytest.raises(DeployFailed) as caught:
            house.deploy("archive", make())
        reasons[name] = caught.value
        assert caught.value.status in (400, 413), (name, caught.value)
        assert str(state) not in caught.value.message, name
    happened(f"{len(reasons)} refused: {sorted({f'{each.status} {each.type}' for each in reasons.values()})}")
    assert sorted(os.listdir(state / "code")) == before
    assert [path for path in (state / "tmp").rglob("*") if path.is_file()] == []
    assert abs(shutil.disk_usage(state).free - free) < 100 << 20
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../x"))
    with pytest.raises(DeployFailed):
        house.deploy("archive", tar.getvalue())
    climbing = wheel("climbing", "1.0", {"climbing.py": "", f"{'../' * 9}tmp/sockd-climbed": "x", "../beside": "x"})
    links = {"linked.py": "", "shadow": "/etc/shadow"}
    linked = wheel("linked", "1.0", links, modes={"shadow": stat.S_IFLNK | 0o777})
    for name, package in (("climbing", climbing), ("linked", linked)):
        try:
            house.deploy(name, "def f(event): return 1", requirements=[name], wheels=[package])
            happened(f"a wheel {name}: installed without what is wrong with it")
        except DeployFailed as refused:
            happened(f"a wheel {name}: {refused.type}")
    assert not os.path.exists("/tmp/sockd-climbed")
    assert not [path for path in state.rglob("*") if path.name in ("beside", "sockd-climbed")]
    assert not [path for path in (state / "packages").rglob("*") if path.is_symlink()]


@case(
    "A9",
    "exchange names in /tmp and in a Zygote's scratch 1 000 times while sandboxes are made",
    expect="no other root changes",
)
def test_renames_in_one_sandbox_do_not_reach_the_making_of_others(
    house: PrivateWorker, happened: Happened, secret: Path
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

    house.deploy("racer", files(race), timeout_s=15)
    looks = "import os\ndef f(event): return [os.listdir('/tmp'), os.listdir('/var/task'), os.path.exists(event)]\n"
    for number in range(10):
        house.deploy(f"looks-{number}", f"x = {number}\n{looks}")
    rounds: list[int] = []
    racing = threading.Thread(target=lambda: rounds.append(house.call("racer", [str(secret.parent), 1.5])))
    racing.start()
    seen = at_once(4, lambda n: [house.call(f"looks-{each}", str(secret)) for each in range(n, 10, 4)])
    racing.join()
    rounds.append(in_zygote(house, race, [str(secret.parent), 0.0]))
    happened(f"{rounds[0]} rounds in a sandbox, {rounds[1]} in a Zygote; 10 roots made meanwhile were whole")
    assert all(tmp == [] and "f.py" in task and not reached for four in seen for tmp, task, reached in four), seen
    assert secret.read_text() == "hunter2" and os.listdir(secret.parent) == ["secret"]


def make_devices(event: Any) -> Any:
    """Device nodes of all kinds, by both calls; and opening the few there are in ways that they are not meant for."""
    base = os.environ.get("TMPDIR", "/tmp")
    tried = {}
    for kind, name in ((stat.S_IFCHR, "character"), (stat.S_IFBLK, "block")):
        for major, minor in ((1, 1), (1, 3), (8, 0), (254, 0), (10, 200)):
            device = os.makedev(major, minor)
            path = f"{base}/{name}-{major}-{minor}"
            tried[f"mknod {name} {major}:{minor}"] = refusal(133, path.encode(), kind | 0o666, device)
            tried[f"mknodat {name} {major}:{minor}"] = refusal(259, AT_FDCWD, path.encode(), kind | 0o666, device)
    return tried


@case("A10", "mknod and mknodat of character and block devices", expect="EPERM")
def test_no_device_can_be_made(house: PrivateWorker, happened: Happened) -> None:
    for who, tried in (("handler", attack(house, make_devices)), ("Zygote", in_zygote(house, make_devices))):
        happened(f"{who}: {len(tried)} tries, {', '.join(sorted(set(tried.values())))}")
        assert set(tried.values()) == {"EPERM"}


def mount_things(event: Any) -> Any:
    """Every way to change a mount table."""
    base = os.environ.get("TMPDIR", "/tmp").encode()
    bind, rec, move, remount, private = 4096, 16384, 8192, 32, 1 << 18
    return {
        "mount tmpfs": refusal(165, b"none", base, b"tmpfs", 0, 0),
        "mount proc": refusal(165, b"proc", base, b"proc", 0, 0),
        "mount cgroup2": refusal(165, b"none", base, b"cgroup2", 0, 0),
        "mount bind": refusal(165, b"/", base, 0, bind | rec, 0),
        "mount move": refusal(165, b"/usr", base, 0, move, 0),
        "remount writable": refusal(165, 0, b"/", 0, remount | bind, 0),
        "make private": refusal(165, 0, b"/", 0, private | rec, 0),
        "umount": refusal(166, b"/tmp", 2),
        "umount root": refusal(166, b"/", 2),
        "pivot_root": refusal(155, base, base),
        "open_tree": refusal(428, AT_FDCWD, b"/", 1),
        "move_mount": refusal(429, AT_FDCWD, b"/usr", AT_FDCWD, base, 0),
        "fsopen": refusal(430, b"tmpfs", 0),
        "fsconfig": refusal(431, 3, 6, 0, 0, 0),
        "fsmount": refusal(432, 3, 0, 0),
        "fspick": refusal(433, AT_FDCWD, b"/", 0),
        "mount_setattr": refusal(442, AT_FDCWD, b"/", 0, b"\0" * 32, 32),
        "unshare mounts": refusal(272, 0x00020000),
        "setns": refusal(308, 0, 0x00020000),
        "statmount": refusal(457, 0, 0, 0, 0),
    }


@case("A11", "mount, umount, move_mount, fsopen, pivot_root, setns ...", expect="EPERM")
def test_nothing_can_be_mounted(house: PrivateWorker, happened: Happened) -> None:
    for who, tried in (("handler", attack(house, mount_things)), ("Zygote", in_zygote(house, mount_things))):
        happened(f"{who}: {len(tried)} calls, {', '.join(sorted(set(tried.values())))}")
        assert set(tried.values()) == {"EPERM"}, tried


@case("A12", "setuid programs in code, in a package, in /tmp, in /usr", expect="no other uid, no capability")
def test_a_setuid_program_gives_nothing(house: PrivateWorker, happened: Happened) -> None:
    def run_them(event: Any) -> Any:
        import glob
        import subprocess

        os.close(os.open("/tmp/status", os.O_CREAT | os.O_WRONLY, 0o755))
        with open("/tmp/status", "w") as file:
            file.write(read("/var/task/status").decode())
        os.chmod("/tmp/status", 0o6755)
        import shutil

        shutil.copy("/bin/cat", "/tmp/cat")
        os.chmod("/tmp/cat", 0o6755)
        seen: dict[str, str] = {}

        def run(command: list[str]) -> None:
            seen[command[0]] = subprocess.run(command, capture_output=True, text=True).stdout

        programs = [
            ["/tmp/cat"],
            ["/tmp/status"],
            ["/var/task/status"],
            *([path] for path in glob.glob("/packages/*/status")),
        ]
        for program in programs:
            command = [*program, "/proc/self/status"]
            done = outcome(run, command)
            if done != "ok":
                seen[command[0]] = done
        return seen, in_child(lambda: [refusal(105, 0), refusal(117, 0, 0, 0), refusal(106, 0), refusal(119, 0, 0, 0)])

    script = b"#!/bin/cat\n"
    code = raw_zip(
        *((name, str(text).encode(), FILE) for name, text in files(run_them).items()),
        ("status", script, stat.S_IFREG | 0o6755),
        ("requirements.txt", b"setuid-root", FILE),
    )
    house.index.add(
        wheel("setuid-root", "1.0", {"setuid_root.py": "", "status": script}, modes={"status": stat.S_IFREG | 0o6755})
    )
    house.deploy("setuid", code)
    seen, calls = house.call("setuid")
    told = {path: text for path, text in seen.items() if "CapEff" in text}
    assert "/tmp/cat" in told, seen
    for path, text in told.items():
        status = {key: value.split() for key, _, value in (line.partition(":") for line in text.splitlines())}
        assert set(status["Uid"]) == {"1000"} and int(status["CapEff"][0], 16) == 0 and status["NoNewPrivs"] == ["1"], (
            path
        )
    bits = [path for path in (house.daemon.state).rglob("status") if path.stat().st_mode & 0o6000]
    happened(f"{len(told)} programs ran as uid 1000; set*id(0): {', '.join(calls)}; {len(bits)} setuid files on disk")
    assert set(calls) == {"EPERM"}
    assert bits == []


def read_proc(event: Any) -> Any:
    """What /proc gives away of other processes, and of the host."""
    others = [pid for pid in visible_pids() if pid != int(os.readlink("/proc/self"))]
    names = ("mem", "maps", "environ", "root", "cwd", "fd", "exe", "auxv", "stack", "syscall", "personality", "smaps")
    got = []
    for pid in {1, 2, 3, 4, 5, *others} - {int(os.readlink("/proc/self"))}:
        for name in names:
            path = f"/proc/{pid}/{name}"
            with contextlib.suppress(OSError):
                if name in ("root", "cwd"):
                    got.append(f"{path} -> {os.listdir(path + '/')[:3]}")
                elif name == "fd":
                    got.append(f"{path} -> {os.listdir(path)}")
                elif name == "exe":
                    got.append(f"{path} -> {os.readlink(path)}")
                elif read(path, 1):
                    got.append(path)
    host = readable(
        ["/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/sched_debug", "/proc/timer_list", "/proc/vmallocinfo"]
    )
    writable = []
    for path in (
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/drop_caches",
    ):
        if outcome(os.open, path, os.O_WRONLY) == "ok":
            writable.append(path)
    root = sorted(os.listdir("/proc/self/root/"))
    return {"others": others, "got": got, "host": host, "writable": writable, "root": root}


@case(
    "A13",
    "/proc/1/root, /proc/<Zygote>/mem, maps, environ, fd ...",
    expect="only its own; ENOENT or EACCES for the rest",
)
def test_proc_shows_nobody_else(house: PrivateWorker, happened: Happened) -> None:
    for name in ("sibling-1", "sibling-2"):
        house.deploy(name, "def f(event): return 1")
        assert house.call(name) == 1
    seen = attack(house, read_proc)
    happened(
        f"handler sees {len(seen['others'])} others, reads {len(seen['got'] + seen['host'])} files of others or the host"
    )
    assert seen["others"] == [] and seen["got"] == [] and seen["host"] == [] and seen["writable"] == [], seen
    assert not NOBODYS & set(seen["root"])
    seen = in_zygote(house, read_proc)
    happened(f"Zygote sees {len(seen['others'])} others, reads {len(seen['got'] + seen['host'])}")
    assert seen["got"] == [] and seen["host"] == [] and seen["writable"] == [], seen
    assert not NOBODYS & set(seen["root"])


@case("A14", "find /sys/fs/cgroup, mount a cgroup tree, write release_agent", expect="there is none: ENOENT, EPERM")
def test_there_are_no_cgroup_files(house: PrivateWorker, happened: Happened) -> None:
    def look(event: Any) -> Any:
        tmp = os.environ.get("TMPDIR", "/tmp")
        files = ["/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent", f"{tmp}/release_agent"]
        mounts = read("/proc/self/mountinfo", 65536).decode()
        tried = {f"write {path}": outcome(os.open, path, os.O_RDWR) for path in files}
        tried["mount cgroup"] = refusal(165, b"none", tmp.encode(), b"cgroup", 0, b"memory")
        tried["mount cgroup2"] = refusal(165, b"none", tmp.encode(), b"cgroup2", 0, 0)
        tried["unshare cgroup"] = refusal(272, 0x02000000)
        tried["list /sys"] = outcome(lambda: os.listdir("/sys/fs"))
        return tried, [line for line in mounts.splitlines() if "cgroup" in line]

    for who, (tried, mounts) in (("handler", attack(house, look)), ("Zygote", in_zygote(house, look))):
        happened(f"{who}: {', '.join(sorted(set(tried.values())))}; {len(mounts)} cgroup mounts")
        assert set(tried.values()) <= {"ENOENT", "EPERM"} and mounts == [], tried
