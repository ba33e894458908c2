"""Stock kernels of Debian: which there are, and the files that an emulator needs of one, in the cache."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from vm.architecture import AARCH64, X86_64
from vm.debian import Debian, VmError, numbers, require, run

UML, QEMU, QEMU_AARCH64 = "uml", "qemu", "qemu-aarch64"
ARCHITECTURES = {UML: X86_64, QEMU: X86_64, QEMU_AARCH64: AARCH64}
"""The architecture of each way."""
WAYS = tuple(ARCHITECTURES)
NEWEST = "newest"
IMAGES = r"linux-image-(\d+\.\d+\.\d+(?!\S*-(?:cloud|rt|16k))\S*-{})"
BINARIES = r"linux-binary-(\d+\.\d+\.\d+(?!\S*-(?:cloud|rt|16k))\S*-{})"
"""Names of packages, by the architecture's name."""
UML_PACKAGE = "user-mode-linux"
INTERPRETER, OWN_INTERPRETER = b"/lib64/ld-linux-x86-64.so.2\0", b"./ld.so"
"""What an executable names as its interpreter (PT_INTERP of elf(5))."""
FIRST_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "crc32c_intel")
"""What finds the root file system in QEMU's guest."""
NO_SUCH_HARDWARE = (
    "sound",
    *(f"drivers/{name}" for name in "gpu media infiniband staging iio usb scsi ata nvme".split()),
)
"""Modules of devices that no emulator here has: the largest ones."""
GUEST = Path(__file__).with_name("guest")


@dataclass(frozen=True, slots=True)
class Kernel:
    """The files of one kernel, for one way."""

    directory: Path

    @property
    def binary(self) -> Path:
        """The kernel: a compressed image, or a program."""
        return self.directory / "linux"

    @property
    def initrd(self) -> Path:
        """QEMU's first root file system."""
        return self.directory / "initrd"

    @property
    def modules(self) -> Path:
        """An image of a file system with the modules."""
        return self.directory / "modules.ext4"


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that Debian has for an architecture, and those that the cache has."""

    directory: Path
    debian: Debian

    @property
    def ways(self) -> list[str]:
        """The ways to run them."""
        return [way for way in WAYS if ARCHITECTURES[way] is self.debian.architecture]

    def available(self, way: str) -> dict[str, list[str]]:
        """Debian's packages of the newest kernel of each series, such as 6.1, oldest first."""
        if way == UML:
            versions = sorted(self.debian.versions(UML_PACKAGE).items(), key=lambda item: numbers(item[0]))
            found = {
                version.split("um")[0]: [f"{UML_PACKAGE}={version}", f"libc6/{release}"]
                for version, release in versions
            }
        else:
            images, binaries = (pattern.format(self.debian.architecture.debian) for pattern in (IMAGES, BINARIES))
            found = {series: [name] for series, name in self.debian.newest(images).items()}
            for series, name in self.debian.newest(binaries).items():  # since 6.19 the image's package is empty
                found[series] = [name, name.replace("-binary-", "-modules-")]
        return dict(sorted(found.items(), key=lambda item: numbers(item[0])))

    def forget_older(self) -> None:
        """Remove the kernels of which Debian has a newer package."""
        for way in self.ways:
            for series, packages in self.available(way).items():
                place = self.place(series, way)
                if place.exists() and (place / "packages").read_text().split() != packages:
                    shutil.rmtree(place)

    def choose(self, series: str, way: str) -> str:
        """The series that was asked for, which may be `newest`. Raises: VmError: there is no such kernel."""
        if self.place(series, way).exists():
            return series
        found = list(self.available(way))
        if series == NEWEST and found:
            return found[-1]
        if series not in found:
            raise VmError(
                f"Debian has no kernel {series} for --way {way}; it has {', '.join(found)} (scripts/vm --list)"
            )
        return series

    def place(self, series: str, way: str) -> Path:
        """The directory for a kernel's files, whether it exists or not."""
        return self.directory / f"{way}-{series}"

    def kernel(self, series: str, way: str) -> Kernel:
        """The files of a kernel; fetched if the cache does not have them. Raises: VmError."""
        directory = self.place(series, way)
        if not directory.exists():
            packages = self.available(way)[series]
            print(f"vm: fetching {', '.join(packages)}", flush=True)
            require({"depmod": "kmod", "mke2fs": "e2fsprogs", "cpio": "cpio", "zstd": "zstd", "dpkg-deb": "dpkg"})
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="part-", dir=self.directory) as part:
                tree, made = Path(part) / "tree", Path(part) / "made"
                made.mkdir()
                self.debian.unpack(packages, tree)
                (self._fill_uml if way == UML else self._fill_qemu)(tree, made)
                (made / "packages").write_text(" ".join(packages))
                made.rename(directory)
        return Kernel(directory)

    def _fill_uml(self, tree: Path, made: Path) -> None:
        # With the C library that it was built for, which this host need not have: beside it, as it is started there.
        program = (tree / "usr/bin/linux.uml").read_bytes()
        (made / "linux").write_bytes(program.replace(INTERPRETER, OWN_INTERPRETER.ljust(len(INTERPRETER), b"\0"), 1))
        (made / "linux").chmod(0o755)
        shutil.copy(_only(tree.rglob("libc.so.6"), "C library"), made / "libc.so.6")
        shutil.copy(_only(tree.rglob("ld-linux-x86-64.so.2"), "interpreter"), made / OWN_INTERPRETER.decode())
        [release] = (tree / "usr/lib/uml/modules").iterdir()
        (tree / "lib/modules").mkdir(parents=True)
        release = release.rename(tree / "lib/modules" / release.name)
        run("depmod", "-b", tree, release.name)
        _image_of(release, made)

    def _fill_qemu(self, tree: Path, made: Path) -> None:
        shutil.copy(_only(tree.rglob("vmlinuz*"), "kernel"), made / "linux")
        if not (tree / "lib").exists():
            (tree / "lib").symlink_to("usr/lib")
        release = _only((tree / "lib/modules").iterdir(), "directory of modules")
        for name in NO_SUCH_HARDWARE:
            shutil.rmtree(release / "kernel" / name, ignore_errors=True)
        run("depmod", "-b", tree, release.name)
        self._write_initrd(tree, release.name, made / "initrd")
        _image_of(release, made)

    def _write_initrd(self, tree: Path, release: str, initrd: Path) -> None:
        """busybox, and the few modules that find the root, unpacked."""
        init = tree / "initramfs"
        for name in ("bin", "dev", "proc", "sys", "newroot", "modules"):
            (init / name).mkdir(parents=True)
        self.debian.unpack(["busybox-static"], tree / "busybox")
        shutil.copy(_only((tree / "busybox").rglob("bin/busybox"), "busybox"), init / "bin/busybox")
        shutil.copy(GUEST / "initramfs", init / "init")
        (init / "init").chmod(0o755)
        files: dict[str, None] = {}
        for module in FIRST_MODULES:
            command = ["modprobe", "-d", str(tree), "-S", release, "--show-depends", module]
            shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # some are built in
            files |= dict.fromkeys(re.findall(r"^insmod (\S+)", shown, re.MULTILINE))
        for number, file in enumerate(files):
            (init / f"modules/{number:03}.ko").write_bytes(_unpacked(Path(file)))
        names = b"\0".join(bytes(file.relative_to(init)) for file in sorted(init.rglob("*")))
        packed = subprocess.run(
            ["cpio", "--null", "-o", "-H", "newc", "--quiet"], cwd=init, input=names, capture_output=True, check=True
        )
        initrd.write_bytes(gzip.compress(packed.stdout, 1))


def _unpacked(module: Path) -> bytes:
    """busybox's insmod takes a plain module."""
    unpack: dict[str, Callable[[Path], bytes]] = {
        ".xz": lambda file: lzma.decompress(file.read_bytes()),
        ".zst": lambda file: subprocess.run(["zstd", "-qdc", file], capture_output=True, check=True).stdout,
    }
    return unpack.get(module.suffix, Path.read_bytes)(module)


def _image_of(modules: Path, made: Path) -> None:
    (made / "release").write_text(f"{modules.name}\n")
    run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", modules, made / "modules.ext4", "1G")


def _only(found: Iterable[Path], what: str) -> Path:
    files = [file for file in found if not file.is_symlink()]
    if len(files) != 1:
        raise VmError(
            f"the package has {len(files)} of what should be one {what}: its layout is unknown to vm/kernels.py"
        )
    return files[0]
