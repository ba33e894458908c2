"""Full pulls: tools that fetch and unpack a whole image before a program starts, as peers of first answers on demand.

    umoci       skopeo copies the image from the registry to a layout, which umoci unpacks
    containerd  `ctr images pull` with a containerd of its own, which unpacks layers with overlayfs; then `ctr images mount`
    buildah     `buildah from` with overlay storage; then `buildah mount`

Each begins with empty storage, and ends with a directory that a program can be started in, without isolation. containerd is
started before the clock, as sockd's worker is. A tool that is not installed is left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 30.0
MOUNTS = Path("/proc/self/mountinfo")
CONTAINERD_CONFIG = """
version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{directory}/sock"
"""
"""The plugin left out serves Kubernetes."""
ANY_SIGNATURE = {"default": [{"type": "insecureAcceptAnything"}]}
"""The policy that containers-common installs; buildah does not start without one."""


class PullFailed(Exception):
    """A tool did not do its part; the message is its own words."""


@dataclass(frozen=True, slots=True)
class Files:
    """An image that was unpacked."""

    root: Path
    parts_s: dict[str, float]
    """How long each step took."""


Fetch = Callable[[str], Files]
"""Fetches the image of a reference to an unencrypted registry. Raises: PullFailed."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A way to fetch images."""

    programs: tuple[str, ...]
    ready: Callable[[Path], AbstractContextManager[Fetch]]
    """Has empty storage in a directory, all removed in the end."""

    @property
    def missing(self) -> list[str]:
        """The programs that are not installed."""
        return [program for program in self.programs if shutil.which(program) is None]


@contextmanager
def _umoci(directory: Path) -> Iterator[Fetch]:
    layout, bundle = directory / "layout", directory / "bundle"

    def fetch(reference: str) -> Files:
        begun = time.perf_counter()
        _run("skopeo", "copy", "--quiet", "--src-tls-verify=false", f"docker://{reference}", f"oci:{layout}:1")
        pulled = time.perf_counter()
        _run("umoci", "unpack", "--image", f"{layout}:1", str(bundle))
        return Files(bundle / "rootfs", {"pull": pulled - begun, "unpack": time.perf_counter() - pulled})

    yield fetch


@contextmanager
def _containerd(directory: Path) -> Iterator[Fetch]:
    mount, config, log = (directory / name for name in ("mount", "config.toml", "log"))
    mount.mkdir()
    config.write_text(CONTAINERD_CONFIG.format(directory=directory))
    ctr = ("ctr", "--address", f"{directory}/sock")

    def fetch(reference: str) -> Files:
        begun = time.perf_counter()
        _run(*ctr, "images", "pull", "--plain-http", "--snapshotter", "overlayfs", reference)
        pulled = time.perf_counter()
        _run(*ctr, "images", "mount", "--snapshotter", "overlayfs", reference, str(mount))
        return Files(mount, {"pull and unpack": pulled - begun, "mount": time.perf_counter() - pulled})

    with log.open("wb") as output:
        daemon = subprocess.Popen(["containerd", "--config", str(config)], stdout=output, stderr=output)
    try:
        _wait_until_served(daemon, ctr, log)
        yield fetch
    finally:
        _unmount_below(directory)
        daemon.terminate()
        daemon.wait(DEADLINE_S)


def _wait_until_served(daemon: subprocess.Popen[bytes], ctr: tuple[str, ...], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise PullFailed(f"containerd did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.05)


@contextmanager
def _buildah(directory: Path) -> Iterator[Fetch]:
    policy = directory / "policy.json"
    policy.write_text(json.dumps(ANY_SIGNATURE))
    storage = ("--root", f"{directory}/root", "--runroot", f"{directory}/run", "--storage-driver", "overlay")
    buildah = ("buildah", *storage)

    def fetch(reference: str) -> Files:
        begun = time.perf_counter()
        unverified = ("--tls-verify=false", "--signature-policy", str(policy))
        container = _run(*buildah, "from", "--quiet", *unverified, f"docker://{reference}")
        pulled = time.perf_counter()
        root = Path(_run(*buildah, "mount", container))
        return Files(root, {"pull and unpack": pulled - begun, "mount": time.perf_counter() - pulled})

    try:
        yield fetch
    finally:
        _unmount_below(directory)


def _unmount_below(directory: Path) -> None:
    """Unmount the image and what a tool has mounted for itself, such as its storage."""
    points = [line.split()[4] for line in MOUNTS.read_text().splitlines()]
    for point in reversed(points):
        if Path(point).is_relative_to(directory):
            _run("umount", point)


def _run(*command: str) -> str:
    """What a command prints, without white space around it. Raises: PullFailed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PullFailed(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


TOOLS = {
    "umoci": Tool(("skopeo", "umoci"), _umoci),
    "containerd": Tool(("containerd", "ctr"), _containerd),
    "buildah": Tool(("buildah",), _buildah),
}


def installed() -> list[str]:
    """The tools that can be measured here."""
    return [name for name, tool in TOOLS.items() if not tool.missing]
