"""One boot of each emulator whose files the cache has: the command's output, its status, and the checkout in the guest."""

from __future__ import annotations

import subprocess

import pytest

from vm.__main__ import CACHE, TOP
from vm.debian import Debian, VmError, require
from vm.emulators import EMULATORS
from vm.job import Checkout
from vm.kernels import ARCHITECTURES, Kernels
from vm.root import Root

pytestmark = [pytest.mark.root, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("way", "series"), [("uml", "6.1"), ("qemu", "6.1"), ("qemu-aarch64", "6.1")])
def test_a_kernel_boots_and_runs_a_command(way: str, series: str) -> None:
    why_not = lacking(way, series)
    if why_not:
        pytest.skip(why_not)
    script = "uname -r; cat /proc/self/cgroup; test -x .venv/bin/sockd && wc -c < pyproject.toml; exit 7"
    command = [str(TOP / "scripts/vm"), "--way", way, "--memory", "1024", "--timeout", "120", series, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stdout + done.stderr
    release, cgroup, size = done.stdout.splitlines()[-3:]
    assert release.startswith(f"{series}.")
    assert cgroup == "0::/user.slice/session.scope"
    assert int(size) == (TOP / "pyproject.toml").stat().st_size


def lacking(way: str, series: str) -> str:
    """Why there is nothing to boot; empty if there is."""
    try:
        require(EMULATORS[way].tools)
    except VmError as error:
        return str(error)
    debian = Debian.kept(CACHE, "", ARCHITECTURES[way])
    parts = (Kernels(CACHE / "kernels", debian).place(series, way), Root(CACHE, debian).place(Checkout(TOP)))
    absent = [part.name for part in parts if not part.exists()]
    return f"{', '.join(absent)} not in {CACHE}; run: scripts/vm --way {way} --prepare {series}" if absent else ""
