"""What a handler sandbox sees of files and devices, and what it can write.

The handlers here are sources: each runs in a sandbox, so it imports what it needs itself.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Harness

pytestmark = [pytest.mark.root, pytest.mark.parametrize("whole_harness", ["detached", "attached"], indirect=True)]


def test_its_root_holds_nothing_of_the_host(harness: Harness) -> None:
    markers = [Path("/root") / f"marker-{os.getpid()}", Path("/tmp") / f"marker-{os.getpid()}"]

    def search(names: Any) -> Any:
        import os

        climb = "../" * 40
        processes = [name for name in os.listdir("/proc") if name.isdigit()] + ["self", "thread-self"]
        fds = [f"/proc/self/fd/{fd}" for fd in range(300)]
        starts = ["", climb, "/proc/self/cwd/" + climb]
        starts += [f"/proc/{name}/{link}/{up}" for name in processes for link in ("root", "cwd") for up in ("", climb)]
        starts += [f"{fd}/{climb}" for fd in fds]
        found = [
            start + name.lstrip("/") for start in starts for name in names if os.path.lexists(start + name.lstrip("/"))
        ]
        return found + [name for name in names if os.path.lexists(name)]

    with_content = "host's own"
    for marker in markers:
        marker.write_text(with_content)
    try:
        assert harness.answer(search, [str(marker) for marker in markers]) == []
        assert (
            harness.answer(search, [str(harness.directory), "/root/.bashrc", "/home", "/etc/shadow", "/sys/fs"]) == []
        )
    finally:
        for marker in markers:
            marker.unlink()


def test_the_top_of_its_tree_is_what_the_base_has(harness: Harness) -> None:
    def look(event: Any) -> Any:
        import os

        return {
            name: sorted(os.listdir(name)) for name in ("/", "/var", "/var/task", "/opt", "/run", "/tmp", "/packages")
        }

    seen = harness.answer(look)
    software = {
        "bin",
        "sbin",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "usr",
        Path(os.path.realpath(sys.base_prefix)).parts[1],
    }
    assert set(seen["/"]) - software == {"dev", "etc", "host", "opt", "packages", "proc", "run", "tmp", "var"}
    assert seen["/var"] == ["task", "tmp"]
    assert seen["/var/task"] == ["f.py"]
    assert seen["/opt"] == ["sockd"]
    assert seen["/run"] == seen["/tmp"] == seen["/packages"] == []


def test_its_tree_is_read_only_but_for_tmp(harness: Harness) -> None:
    def try_to_write(event: Any) -> Any:
        import os

        errors = {}
        for directory in (
            "/",
            "/var/task",
            "/packages",
            "/usr",
            "/usr/lib",
            "/etc",
            "/dev",
            "/opt/sockd",
            "/run",
            "/proc",
        ):
            try:
                os.close(os.open(f"{directory}/new", os.O_CREAT | os.O_WRONLY))
            except OSError as error:
                errors[directory] = error.errno
        for name in ("/var/task/f.py", "/etc/passwd"):
            try:
                os.open(name, os.O_WRONLY)
            except OSError as error:
                errors[name] = error.errno
        return errors, {
            name: os.statvfs(name).f_flag for name in ("/", "/var/task", "/packages", "/usr", "/dev", "/tmp")
        }

    errors, flags = harness.answer(try_to_write)
    # procfs can be written in places, but names cannot be made there.
    assert {error for name, error in errors.items() if name != "/proc"} <= {errno.EROFS, errno.EACCES}
    assert set(errors) == {
        *("/", "/var/task", "/packages", "/usr", "/usr/lib", "/etc", "/dev", "/opt/sockd", "/run", "/proc"),
        *("/var/task/f.py", "/etc/passwd"),
    }
    st_nodev = 4
    for name in ("/", "/var/task", "/packages", "/usr"):
        assert flags[name] & os.ST_RDONLY and flags[name] & os.ST_NOSUID, name
    for name in ("/var/task", "/packages", "/usr", "/tmp"):
        assert flags[name] & st_nodev, name
    assert flags["/tmp"] & os.ST_NOSUID and not flags["/tmp"] & os.ST_RDONLY
    assert flags["/dev"] & os.ST_RDONLY and flags["/dev"] & os.ST_NOSUID


def test_tmp_is_private(harness: Harness) -> None:
    def write_and_list(name: Any) -> Any:
        import os

        open(f"/tmp/{name}", "x").close()
        return sorted(os.listdir("/tmp"))

    first, second = harness.start(write_and_list), harness.start(write_and_list)
    assert first.answer("one") == ["one"]
    assert second.answer("two") == ["two"]
    assert first.answer("three") == ["one", "three"]
    assert not {"one", "two", "three"} & set(os.listdir("/tmp"))


def test_tmp_is_limited_in_bytes_and_in_files(harness: Harness) -> None:
    def fill(event: Any) -> Any:
        import os

        written = files = 0
        reasons = []
        try:
            with open("/tmp/big", "wb", buffering=0) as file:
                while written < 64 << 20:
                    written += file.write(b"x" * 65536)
        except OSError as error:
            reasons.append(error.errno)
        os.unlink("/tmp/big")
        try:
            while files < 10_000:
                open(f"/tmp/{files}", "x").close()
                files += 1
        except OSError as error:
            reasons.append(error.errno)
        return written, files, reasons

    written, files, reasons = harness.answer(fill, tmp_bytes=4 << 20, tmp_inodes=100)
    assert reasons == [errno.ENOSPC, errno.ENOSPC]
    assert 3 << 20 < written <= 4 << 20
    assert 90 <= files <= 100


@pytest.mark.parametrize("spare", [False, True])
def test_what_it_writes_to_tmp_is_charged_to_it(harness: Harness, spare: bool) -> None:
    def write(event: Any) -> Any:
        with open("/tmp/data", "wb") as file:
            for _ in range(8):
                file.write(bytes(1 << 20))

    running = harness.start(write, spare=spare)
    before = running.sandbox.process.cgroup.memory_bytes()
    running.answer()
    assert running.sandbox.process.cgroup.memory_bytes() - before > 7 << 20


def test_there_are_five_devices_and_none_can_be_made(harness: Harness) -> None:
    def look(event: Any) -> Any:
        import os
        import stat

        nodes = {name: os.lstat(f"/dev/{name}") for name in os.listdir("/dev")}
        refused = []
        for kind in (stat.S_IFCHR, stat.S_IFBLK):
            try:
                os.mknod("/tmp/node", kind | 0o666, os.makedev(1, 3))
            except OSError as error:
                refused.append(error.errno)
        with open("/dev/null", "wb") as null, open("/dev/urandom", "rb") as random, open("/dev/zero", "rb") as zero:
            null.write(random.read(10) + zero.read(10))
        return {name: [node.st_mode, node.st_rdev] for name, node in nodes.items()}, refused

    nodes, refused = harness.answer(look)
    devices = {
        name: os.major(number) * 100 + os.minor(number) for name, (mode, number) in nodes.items() if stat.S_ISCHR(mode)
    }
    assert devices == {"null": 103, "zero": 105, "full": 107, "random": 108, "urandom": 109}
    assert all(stat.S_ISLNK(mode) for name, (mode, _) in nodes.items() if name not in devices)
    assert refused == [errno.EPERM, errno.EPERM]


def test_it_cannot_leave_its_root(harness: Harness) -> None:
    def try_to_escape(event: Any) -> Any:
        import ctypes
        import os

        libc = ctypes.CDLL(None, use_errno=True)
        outcomes = {}
        os.mkdir("/tmp/jail")
        top = os.open("/", os.O_RDONLY)
        calls = {
            "chroot": lambda: libc.chroot(b"/tmp/jail"),
            "unshare(CLONE_NEWUSER)": lambda: libc.unshare(0x10000000),
            "unshare(CLONE_NEWNS)": lambda: libc.unshare(0x00020000),
            "setns": lambda: libc.setns(top, 0),
            "mount": lambda: libc.mount(b"none", b"/tmp/jail", b"tmpfs", 0, None),
            "umount": lambda: libc.umount2(b"/tmp", 2),
            "pivot_root": lambda: libc.syscall(155, b"/tmp/jail", b"/tmp/jail"),
            "open_tree": lambda: libc.syscall(428, -100, b"/", 1),
            "open_by_handle_at": lambda: libc.syscall(304, top, b"", 0),
            "setuid": lambda: libc.setuid(0),
            "ptrace": lambda: libc.ptrace(0, 0, 0, 0),
        }
        for name, call in calls.items():
            ctypes.set_errno(0)
            outcomes[name] = (call(), ctypes.get_errno())  # type: ignore[no-untyped-call]
        os.fchdir(top)
        for _ in range(100):
            os.chdir("..")  # noqa: TID251
        here, root = os.stat("."), os.stat("/")
        return outcomes, (here.st_dev, here.st_ino) == (root.st_dev, root.st_ino), sorted(os.listdir("."))

    outcomes, at_the_top, names = harness.answer(try_to_escape)
    assert outcomes == {name: [-1, errno.EPERM] for name in outcomes}
    assert at_the_top
    assert "var" in names and "home" not in names


def test_it_may_set_the_ids_that_it_has_and_no_others(harness: Harness) -> None:
    def try_all(event: Any) -> Any:
        import ctypes
        import os

        libc = ctypes.CDLL(None, use_errno=True)
        names = {1: ("setuid", "setgid"), 2: ("setreuid", "setregid"), 3: ("setresuid", "setresgid")}

        def answers(number: int) -> list[list[int]]:
            results = []
            for count, calls in names.items():
                for name in calls:
                    ctypes.set_errno(0)
                    results.append([getattr(libc, name)(*[number] * count), ctypes.get_errno()])
            return results

        own = os.getuid()
        fs_ids = [call(number) for call in (libc.setfsuid, libc.setfsgid) for number in (-1, own)]
        ctypes.set_errno(0)
        groups = libc.setgroups(0, None), ctypes.get_errno()
        others = [answers(number) for number in (0, 1, own + 1)]
        return answers(own), others, fs_ids, groups, [*os.getresuid(), *os.getresgid()]

    own, others, fs_ids, groups, ids = harness.answer(try_all)
    assert own == [[0, 0]] * 6
    assert others == [[[-1, errno.EPERM]] * 6] * 3
    assert fs_ids == [1000] * 4 and ids == [1000] * 6
    assert groups == [-1, errno.EPERM], "as for each process without CAP_SETGID"


def test_a_setuid_program_gives_it_nothing(harness: Harness) -> None:
    candidates = [path for path in Path("/usr/bin").iterdir() if path.is_file() and path.stat().st_mode & stat.S_ISUID]

    def run_setuid(names: Any) -> Any:
        import os
        import shutil
        import subprocess

        shutil.copy("/usr/bin/id", "/tmp/id")
        os.chmod("/tmp/id", 0o4755)
        seen = [subprocess.run(["/tmp/id", "-u"], capture_output=True, text=True).stdout.strip()]
        for name in names:
            child: Any = subprocess.Popen([name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                with open(f"/proc/{child.pid}/status") as file:
                    status = dict(line.split(":", 1) for line in file)
                seen += status["Uid"].split()
            finally:
                child.kill()
                child.communicate()
        return seen

    assert set(harness.answer(run_setuid, [str(path) for path in candidates[:3]])) == {"1000"}


def test_procs_files_that_concern_the_host_are_closed_to_it(harness: Harness) -> None:
    def try_all(event: Any) -> Any:
        opened = []
        for name in (
            *("/proc/sysrq-trigger", "/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern"),
            *(
                "/proc/sys/vm/drop_caches",
                "/proc/sys/net/ipv4/ip_forward",
                "/proc/self/uid_map",
                "/proc/1/oom_score_adj",
            ),
        ):
            try:
                with open(name, "w") as file:
                    file.write("0" if name.endswith("adj") else "1")
                opened.append(name)
            except OSError:
                continue
        for name in ("/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/proc/keys"):
            try:
                with open(name, "rb") as file:
                    if file.read(4096).strip(b"\0") and name != "/proc/kallsyms":
                        opened.append(name)
            except OSError:
                continue
        return opened

    assert set(harness.answer(try_all)) <= {
        "/proc/1/oom_score_adj"
    }  # its own, and it can only make itself the first to go
