"""scripts/vm: its arguments, what it tells of what is missing, and what it leaves behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import vm.__main__ as command_line
from tests.daemon.kernel_view import wait_readable
from vm import debian, root, suite
from vm.architecture import AARCH64, X86_64
from vm.debian import CONTAINED, Debian, VmError, numbers, series_of
from vm.emulators import EMULATORS, Ends, Files
from vm.job import Checkout, write_job
from vm.kernels import QEMU, QEMU_AARCH64, UML, WAYS, Kernel, Kernels
from vm.machine import Bounds, preparing, run_directory, run_machine
from vm.root import Root

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which kernel? scripts/vm --list shows them"),
        (["6.1"], "which command?"),
        (["--way", "xen", "6.1", "true"], "invalid choice: 'xen'"),
        (["--memory", "100", "6.1", "true"], "--memory is at least 256"),
        (["--timeout", "0", "6.1", "true"], "--timeout at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], words: str) -> None:
    done = subprocess.run([REPO / "scripts/vm", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and words in done.stderr


def test_what_follows_the_kernel_is_the_command() -> None:
    given = command_line.parse(["--way", "qemu", "--memory", "512", "6.12", "make", "test", "--way", "mine"])
    assert (given.kernel, given.way, given.memory) == ("6.12", "qemu", 512)
    assert given.command == ["make", "test", "--way", "mine"]


def test_a_host_without_the_tools_learns_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("unshare", "setpriv"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setattr(debian, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VmError, match=r"run: apt-get install --no-install-recommends qemu-system-x86$"):
        debian.require(EMULATORS[QEMU].tools)


def test_the_mirror_is_the_one_of_the_hosts_apt(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("# deb http://old.example/debian bookworm main\n")
    with pytest.raises(VmError, match="--mirror URL"):
        debian.mirror(tmp_path)
    (tmp_path / "sources.list.d/debian.sources").write_text("Types: deb\nURIs: http://near.example/debian\nSuites: x\n")
    assert debian.mirror(tmp_path) == "http://near.example"
    (tmp_path / "sources.list").write_text("deb [arch=amd64] https://first.example/mirror/debian bookworm main\n")
    assert debian.mirror(tmp_path) == "https://first.example/mirror"


class Packages(Debian):
    """Packages as Debian has them, without apt."""

    def _apt(self, tool: str, *arguments: str, cwd: Path | None = None) -> str:
        if "madison" in arguments:
            lines = "user-mode-linux | 6.12um1+b22 | {0} trixie/main x\n user-mode-linux | 6.1um4+b13 | {0} bookworm/main x\n"
            return lines.format(self.url)
        return "\n".join(
            """
            linux-image-6.1.0-47-amd64 linux-image-6.1.0-156-amd64 linux-image-6.1.0-200-rt-amd64 linux-image-amd64
            linux-image-6.12.118+deb13-amd64 linux-image-6.12.95+deb13-amd64 linux-image-6.12.200+deb13-cloud-amd64
            linux-image-7.3.4+deb13-amd64 linux-binary-7.3.4+deb13-amd64 linux-image-6.1.0-300-amd64-unsigned
            linux-image-6.1.0-57-arm64 linux-image-6.12.118+deb13-arm64-16k linux-image-6.12.95+deb13-arm64
            """.split()
        )


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    (tmp_path / "sources.list").touch()
    return Kernels(tmp_path / "kernels", Packages(tmp_path, "http://near.example", X86_64))


def test_the_newest_kernel_of_each_series_is_offered(kernels: Kernels) -> None:
    assert kernels.available(QEMU) == {
        "6.1": ["linux-image-6.1.0-156-amd64"],
        "6.12": ["linux-image-6.12.118+deb13-amd64"],
        "7.3": ["linux-binary-7.3.4+deb13-amd64", "linux-modules-7.3.4+deb13-amd64"],
    }
    assert kernels.available(UML) == {
        "6.1": ["user-mode-linux=6.1um4+b13", "libc6/bookworm"],
        "6.12": ["user-mode-linux=6.12um1+b22", "libc6/trixie"],
    }
    assert kernels.choose("newest", QEMU) == "7.3" and kernels.choose("newest", UML) == "6.12"


def test_each_architecture_has_kernels_and_ways_of_its_own(tmp_path: Path) -> None:
    kept = Packages.kept(tmp_path, "http://near.example", AARCH64)
    kept.directory.mkdir()
    (kept.directory / "sources.list").touch()
    kernels = Kernels(tmp_path / "kernels", kept)
    assert kernels.ways == [QEMU_AARCH64]
    assert kernels.available(QEMU_AARCH64) == {
        "6.1": ["linux-image-6.1.0-57-arm64"],
        "6.12": ["linux-image-6.12.95+deb13-arm64"],
    }


def test_a_host_that_runs_no_programs_of_an_architecture_learns_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root, "BINFMT", tmp_path)
    foreign = next(each for each in (X86_64, AARCH64) if each.name != os.uname().machine)
    with pytest.raises(VmError, match=rf"no programs of {foreign.name}; run: apt-get install .* binfmt-support$"):
        Root(tmp_path, Debian(tmp_path, "http://near.example", foreign)).image(Checkout(REPO))


def test_a_kernel_that_debian_does_not_have_is_refused(kernels: Kernels) -> None:
    with pytest.raises(VmError, match=r"no kernel 5\.10 for --way uml; it has 6\.1, 6\.12"):
        kernels.choose("5.10", UML)


def test_a_kernel_is_kept_until_an_update_knows_a_newer_one(kernels: Kernels) -> None:
    for series, package in (
        ("6.1", "user-mode-linux=6.1um4+b13 libc6/bookworm"),
        ("6.12", "user-mode-linux=6.12um1+b1 libc6/trixie"),
    ):
        kernels.place(series, UML).mkdir(parents=True)
        (kernels.place(series, UML) / "packages").write_text(package)
    assert kernels.kernel("6.12", UML).directory == kernels.place("6.12", UML)
    kernels.forget_older()
    assert kernels.place("6.1", UML).exists() and not kernels.place("6.12", UML).exists()


def test_numbers_of_packages_are_compared_as_numbers() -> None:
    assert numbers("6.1.0-156-amd64") > numbers("6.1.0-56-amd64") and series_of("6.12.118+deb13-amd64") == "6.12"


def test_the_job_has_the_checkout_with_what_is_not_committed_and_the_command(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for command in (["init", "-q"], ["add", "kept"]):
        work.mkdir(exist_ok=True)
        (work / "kept").write_text("old")
        subprocess.run(["git", "-C", work, *command], check=True)
    (work / "kept").write_text("new")
    (work / "added").touch()
    (work / ".gitignore").write_text("ignored\n")
    (work / "ignored").touch()
    write_job(tmp_path / "job.tar", Checkout(work), ["echo", "two words"])
    with tarfile.open(tmp_path / "job.tar") as job:
        names = {name for name in job.getnames() if name.startswith("checkout/")}
        kept, shell = job.extractfile("checkout/kept"), job.extractfile("guest/command")
        assert names == {"checkout/.gitignore", "checkout/added", "checkout/kept"}
        assert kept is not None and kept.read() == b"new"
        assert shell is not None and shell.read().endswith(b"\necho 'two words'\n")
    assert (tmp_path / "job.tar").stat().st_size % (1 << 20) == 0


def test_a_directory_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VmError, match="is no Git checkout"):
        Checkout(tmp_path).files()


def test_what_a_killed_run_has_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "runs/killed").mkdir(parents=True)
    (tmp_path / "runs/killed/cow").touch()
    (tmp_path / "runs/lives").mkdir()
    (tmp_path / "part-root").mkdir()
    with (tmp_path / "runs/lives/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with preparing(tmp_path), run_directory(tmp_path) as mine:
            assert {file.name for file in (tmp_path / "runs").iterdir()} == {"lives", mine.name}
            assert not (tmp_path / "part-root").exists()
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["lives"]


@pytest.mark.root
def test_what_was_started_ends_with_the_one_that_started_it() -> None:
    """By SIGKILL, which leaves it no time to end anything: the kernel does, also processes in sessions of their own."""
    read, write = os.pipe()
    script = f"import subprocess, sys; subprocess.run([*{CONTAINED!r}, 'sh', '-c', 'setsid sleep 600 & echo; exec sleep 600'])"
    process = subprocess.Popen([sys.executable, "-c", script], cwd=REPO, stdout=write, stderr=write)
    os.close(write)
    try:
        assert os.read(read, 1) == b"\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert wait_readable(read, 20), "a process still has the pipe"
        assert os.read(read, 1) == b""
    finally:
        os.close(read)


@pytest.mark.parametrize("way", WAYS)
def test_the_root_file_system_is_never_written(way: str, tmp_path: Path) -> None:
    files = Files(tmp_path, Kernel(tmp_path), tmp_path / "root.ext4", tmp_path / "job.tar")
    words = " ".join(EMULATORS[way].command(files, 512, Ends(3, 4), "net"))
    assert (
        f"{tmp_path}/cow,{tmp_path}/root.ext4" in words
        or f"{tmp_path}/root.ext4,file.locking=off,if=virtio,format=raw,snapshot=on" in words
    )


class Script:
    """An emulator that runs a line of shell instead of a kernel."""

    tools: dict[str, str] = {}  # noqa: RUF012  a constant

    def __init__(self, line: str) -> None:
        self._line = line

    def command(self, files: Files, memory_mb: int, ends: Ends, network: str) -> list[str]:
        return ["sh", "-c", self._line.format(console=ends.console, words=ends.words)]

    def environment(self, files: Files, memory_mb: int) -> dict[str, str]:
        return {}

    def network(self, directory: Path) -> contextlib.AbstractContextManager[str]:
        return contextlib.nullcontext("")


@pytest.mark.root
@pytest.mark.parametrize(
    ("console", "said"),
    [
        ("UML ran out of memory on the host side! This can happen due to ...", "sysctl vm.max_map_count=1048576\n"),
        ("a quiet console", "Linux 6.1.9 booted in 0 s\n"),
    ],
)
def test_the_sysctl_is_named_whose_bound_had_processes_of_the_guest_killed(
    console: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Files(tmp_path, Kernel(tmp_path), tmp_path / "root.ext4", tmp_path / "job.tar")
    booted, ended = (f"echo {word} > /proc/self/fd/{{words}}" for word in ("booted 6.1.9", "status 137"))
    emulator = Script(f"echo {console!r} > /proc/self/fd/{{console}}; {booted}; {ended}")
    assert run_machine(emulator, files, Bounds(256, 20, 20)) == 137
    assert capsys.readouterr().out.endswith(said)


@pytest.mark.root
def test_a_machine_whose_kernel_panicked_is_not_waited_for(tmp_path: Path) -> None:
    """User-mode-linux may spin then, and QEMU would wait for a reboot."""
    files = Files(tmp_path, Kernel(tmp_path), tmp_path / "root.ext4", tmp_path / "job.tar")
    booted, panicked = "echo booted 6.1.9", "echo Kernel panic - not syncing: x"
    line = f"{booted} > /proc/self/fd/{{words}}; {panicked} > /proc/self/fd/{{console}}; exec sleep 600"
    with pytest.raises(VmError, match=r'the guest\'s kernel panicked before it said "status"'):
        run_machine(Script(line), files, Bounds(256, 20, 500))


@pytest.fixture
def fake_vm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of scripts/vm: the demo fails on the newest kernel until a file is there. Returns: the file of its calls."""
    calls, mended = tmp_path / "calls", tmp_path / "mended"
    failing = f'case "$*" in *"newest make demo"*) test -e {mended} || exit 3;; esac'
    (tmp_path / "vm").write_text(f'#!/bin/sh\necho "$*" >> {calls}\n{failing}\n')
    (tmp_path / "vm").chmod(0o755)
    monkeypatch.setattr(suite, "VM", tmp_path / "vm")
    return calls


def test_the_suite_tells_which_command_failed_on_which_kernel(
    fake_vm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ["--results", str(fake_vm.with_name("results"))]
    assert suite.main(["--only", "demo", *results]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in lines[-3:]] == [["6.1", "uml", "0"], ["6.12", "uml", "0"], ["newest", "uml", "3"]]
    assert suite.main(["--only", "demo", "--kernel", "6.1:uml", *results]) == 0


def test_the_suite_goes_on_with_what_has_not_passed(
    fake_vm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = "a"
    monkeypatch.setattr(Checkout, "digest", lambda _: checkout)
    demo = ["--only", "demo", "--results", str(fake_vm.with_name("results"))]

    def newly_run(*options: str) -> int:
        before = fake_vm.read_text().count("\n") if fake_vm.exists() else 0
        status = suite.main([*demo, *options])
        after = fake_vm.read_text().splitlines()
        assert status == int(not fake_vm.with_name("mended").exists())
        return len(after) - before

    assert newly_run() == 3
    assert (
        "0 passed before; the others took 0 minutes the last time, and 3 that never ran here" in capsys.readouterr().out
    )
    assert newly_run() == 1
    fake_vm.with_name("mended").touch()
    assert newly_run() == 1
    assert "3 commands, 2 passed before; the others took 0 minutes the last time\n" in capsys.readouterr().out
    assert newly_run() == 0
    assert newly_run("--again") == 3
    checkout = "b"
    assert newly_run() == 3


def test_a_checkout_s_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").symlink_to("nowhere")
    checkout, digests = Checkout(tmp_path), set()
    for change in (
        lambda: None,
        lambda: (tmp_path / "a").write_text("2"),
        lambda: (tmp_path / "a").rename(tmp_path / "c"),
        lambda: (tmp_path / "b").rename(tmp_path / "d"),
    ):
        change()
        digests.add(checkout.digest())
    assert len(digests) == 4
    assert checkout.digest() in digests
