"""The emulators: what each needs on this host, and the commands that start it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from vm.debian import CONTAINED, VmError
from vm.kernels import QEMU, QEMU_AARCH64, UML, Kernel

SHM = Path("/dev/shm")
LOOK_S = 0.05
CODE_MB = 512
"""QEMU's cache of translated code."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one machine."""

    directory: Path
    kernel: Kernel
    root: Path
    """The image of the root file system, which is not written."""
    job: Path

    @property
    def console(self) -> Path:
        """What the kernel prints."""
        return self.directory / "console"


class Ends(NamedTuple):
    """The host's ends of the guest's lines, as descriptors; its output goes to descriptor 1."""

    console: int
    """What the kernel prints."""
    words: int
    """What the guest says to the host: its third serial line."""


class Emulator(Protocol):
    """One way to run a kernel."""

    tools: dict[str, str]
    """Programs that it needs, and the Debian package of each."""

    def command(self, files: Files, memory_mb: int, ends: Ends, network: str) -> list[str]:
        """The command that starts it.

        Args: network: of `network`."""

    def environment(self, files: Files, memory_mb: int) -> dict[str, str]:
        """Variables for it."""

    def network(self, directory: Path) -> contextlib.AbstractContextManager[str]:
        """What gives the guest a network; the way to it, for `command`."""


class Uml:
    """User-mode-linux: the kernel as a process, one processor, programs run natively."""

    tools = {"slirp4netns": "slirp4netns", "unshare": "util-linux", "setpriv": "util-linux"}  # noqa: RUF012  a constant

    def command(self, files: Files, memory_mb: int, ends: Ends, network: str) -> list[str]:
        return [
            *("env", f"--chdir={files.kernel.directory}", f"LD_LIBRARY_PATH={files.kernel.directory}"),
            *(
                str(files.kernel.binary),
                f"mem={memory_mb}M",
                "root=/dev/ubda",
                "rootfstype=ext4",
                "rw",
                "init=/sbin/guest-start",
            ),
            *(f"ubd0={files.directory / 'cow'},{files.root}", f"ubd1r={files.kernel.modules}", f"ubd2r={files.job}"),
            *(
                f"vec0:transport=bess,dst={network},depth=128,gro=1",
                "con=null",
                f"con0=null,fd:{ends.console}",
                "ssl=null",
            ),
            *("ssl1=null,fd:1", f"ssl2=null,fd:{ends.words}", "quiet", "panic=-1"),
        ]

    def environment(self, files: Files, memory_mb: int) -> dict[str, str]:
        # The guest's memory is a file there.
        fits = SHM.is_dir() and shutil.disk_usage(SHM).free > memory_mb << 20
        return {"TMPDIR": str(SHM if fits else files.directory)}

    @contextlib.contextmanager
    def network(self, directory: Path) -> Iterator[str]:
        socket = directory / "network"
        with (directory / "network.log").open("w") as log:
            process = subprocess.Popen(
                [*CONTAINED, "slirp4netns", "--target-type=bess", str(socket)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            while not socket.exists():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=LOOK_S)
                    raise VmError(f"slirp4netns ended: {(directory / 'network.log').read_text().strip()}")
            yield str(socket)
        finally:
            process.kill()
            process.wait()


class Board(NamedTuple):
    """The hardware that QEMU emulates."""

    program: str
    package: str
    processor: tuple[str, ...]
    console: str
    """The kernel's name of the line that it prints to."""
    lines: tuple[str, ...]
    """Serial lines: what the kernel prints, what the guest prints (`ttyS1`), and what it says to the host (`ttyS2`)."""


PC = Board(
    "qemu-system-x86_64",
    "qemu-system-x86",
    ("-cpu", "max,la57=off"),
    "ttyS0",
    ("-serial", "chardev:console", "-serial", "chardev:out", "-serial", "chardev:words"),
)
VIRT = Board(
    "qemu-system-aarch64",
    "qemu-system-arm",
    ("-machine", "virt,gic-version=3", "-cpu", "neoverse-n1"),
    "ttyAMA0",
    # It has one line of its own, which is not among the ttyS.
    (
        *("-serial", "chardev:console", "-chardev", "null,id=none"),
        *(word for each in ("none", "out", "words") for word in ("-device", f"pci-serial,chardev={each}")),
    ),
)


class Qemu:
    """QEMU: an emulated processor (TCG), which needs nothing of the host's."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.tools = {board.program: board.package, "unshare": "util-linux", "setpriv": "util-linux"}

    def command(self, files: Files, memory_mb: int, ends: Ends, network: str) -> list[str]:
        board = self._board
        drives = (
            (files.root, "format=raw,snapshot=on,cache=unsafe"),  # what is written goes to a file without a name
            (files.kernel.modules, "format=raw,readonly=on"),
            (files.job, "format=raw,readonly=on"),
        )
        return [
            *(board.program, *board.processor, "-accel", f"tcg,tb-size={CODE_MB}", "-m", f"{memory_mb}M"),
            # With two and -icount, QEMU 7.2 hangs while Linux 6.1 starts the second one.
            *("-smp", "1"),
            # The guest's clock goes with the instructions that it executes, so that its deadlines fit its speed.
            *("-icount", "shift=0,sleep=on", "-rtc", "clock=vm"),
            *("-kernel", str(files.kernel.binary), "-initrd", str(files.kernel.initrd)),
            *("-append", f"console={board.console} mitigations=off quiet panic=-1"),
            *(word for file, kind in drives for word in ("-drive", f"file={file},file.locking=off,if=virtio,{kind}")),
            *("-device", "virtio-rng-pci", "-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net"),
            *("-nodefaults", "-display", "none", "-no-reboot"),
            *("-chardev", f"file,id=console,path=/proc/self/fd/{ends.console}"),
            *("-chardev", "stdio,id=out,signal=off", "-chardev", f"file,id=words,path=/proc/self/fd/{ends.words}"),
            *board.lines,
        ]

    def environment(self, files: Files, memory_mb: int) -> dict[str, str]:
        return {"TMPDIR": str(files.directory)}

    def network(self, directory: Path) -> contextlib.AbstractContextManager[str]:
        return contextlib.nullcontext("")


EMULATORS: dict[str, Emulator] = {UML: Uml(), QEMU: Qemu(PC), QEMU_AARCH64: Qemu(VIRT)}
