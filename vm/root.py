"""The guest's root file system: Debian, and the virtual environment that `make setup` makes in it.

Kept in the cache: the archive of Debian alone, and one image of the file system for the checkout's build files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from vm.architecture import Architecture
from vm.debian import BASE_RELEASE, Debian, VmError, require, run
from vm.job import CERTIFICATES, Checkout, environment

PACKAGES = (
    *("python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "make", "git"),
    *(
        "mount",
        "hostname",
        "nftables",
        "iproute2",
        "kmod",
        "procps",
        "psmisc",
        "strace",
        "curl",
        "ca-certificates",
        "tzdata",
        "udev",
    ),
    *("erofs-utils", "squashfs-tools", "e2fsprogs", "zstd", "xz-utils"),
)
SIZE = "16G"
"""The file is sparse: what is used of it is about 2.5 GB."""
HOME = "root/sockd"
GUEST = Path(__file__).with_name("guest")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
_IN_ROOT = """
root=$1; shift
mount --bind /dev "$root/dev"; mount -t proc proc "$root/proc"; mount -t tmpfs tmpfs "$root/tmp"
exec chroot "$root" /usr/bin/env -i "$@"
"""
"""The mounts are in a mount namespace, and end with the command."""


@dataclass(frozen=True, slots=True)
class Root:
    """The root file systems in the cache, for the architecture of Debian's packages."""

    directory: Path
    debian: Debian

    def place(self, checkout: Checkout) -> Path:
        """The image for a checkout's build files, whether it exists or not."""
        return self.directory / f"root-{self._architecture.debian}-{self._key(checkout)}.ext4"

    def image(self, checkout: Checkout) -> Path:
        """The image for a checkout; made if there is none, in the place of an older one. Raises: VmError."""
        image = self.place(checkout)
        if not image.exists():
            self._make(image, checkout)
            for other in self.directory.glob(f"root-{self._architecture.debian}-*.ext4"):
                if other != image:
                    other.unlink()
        return image

    @property
    def _architecture(self) -> Architecture:
        return self.debian.architecture

    def _key(self, checkout: Checkout) -> str:
        digest = hashlib.sha256(" ".join(PACKAGES).encode() + (GUEST / "start").read_bytes())
        for file in checkout.build_files():
            digest.update(str(file).encode() + b"\0" + _what_builds(checkout.top / file))
        return digest.hexdigest()[:12]

    def _make(self, image: Path, checkout: Checkout) -> None:
        _require_programs_of(self._architecture)
        require({"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "zstd": "zstd"})
        self.directory.mkdir(parents=True, exist_ok=True)
        part = image.with_name(f"part-{image.name}")
        with tempfile.TemporaryDirectory(prefix="part-", dir=self.directory) as directory:
            tree = Path(directory) / "root"
            tree.mkdir()
            print(f"vm: making the root file system: {BASE_RELEASE}, then make setup (minutes)", flush=True)
            run("tar", "--zstd", "-xf", self._base(), "-C", tree)
            self._set_up(tree, checkout)
            try:
                run("mke2fs", "-q", "-t", "ext4", "-m", "0", "-d", tree, part, SIZE)
                part.rename(image)
            finally:
                part.unlink(missing_ok=True)

    def _base(self) -> Path:
        key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
        base = self.directory / f"{BASE_RELEASE}-{self._architecture.debian}-{key}.tar.zst"
        if not base.exists():
            part = base.with_name(f"part-{base.name}")
            try:
                options = f"--quiet --variant=apt --architectures={self._architecture.debian}".split()
                included = f"--include={','.join(PACKAGES)}"
                run("mmdebstrap", *options, included, BASE_RELEASE, part, *self.debian.sources(BASE_RELEASE))
                part.rename(base)
            finally:
                part.unlink(missing_ok=True)
        return base

    def _set_up(self, tree: Path, checkout: Checkout) -> None:
        """What Debian lacks: the start of the guest, the checkout's environment and extensions, and no more of the checkout."""
        shutil.copy(GUEST / "start", tree / "sbin/guest-start")
        (tree / "sbin/guest-start").chmod(0o755)
        (tree / "etc/hostname").write_text("guest\n")
        (tree / "etc/hosts").write_text("127.0.0.1 localhost guest\n::1 localhost\n")
        (tree / "etc/resolv.conf").unlink(missing_ok=True)
        shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")
        shutil.copy(CERTIFICATES, tree / "etc/ssl/certs/ca-certificates.crt")
        home = tree / HOME
        checkout.copy_to(home)
        mine = {file for file in home.rglob("*") if not file.is_dir()}
        variables = environment() | {"UV_CACHE_DIR": "/tmp/uv", "UV_COMPILE_BYTECODE": "1"}
        words = [f"{key}={value}" for key, value in variables.items()]
        run(
            *("unshare", "--mount", "--fork", "bash", "-ec", _IN_ROOT, "-", tree),
            *words,
            "make",
            "-C",
            f"/{HOME}",
            "setup",
        )
        for file in mine:
            file.unlink()


def _require_programs_of(architecture: Architecture) -> None:
    if architecture.name != os.uname().machine and not (BINFMT / f"qemu-{architecture.name}").exists():
        packages = "qemu-user-static binfmt-support"
        raise VmError(
            f"this host runs no programs of {architecture.name}; run: apt-get install --no-install-recommends {packages}"
        )


def _what_builds(file: Path) -> bytes:
    """Its content, but for the settings of linters and tests."""
    if file.name != "pyproject.toml":
        return file.read_bytes()
    tables = tomllib.loads(file.read_text())
    return repr((tables["build-system"], tables["project"], tables["tool"]["setuptools"])).encode()
