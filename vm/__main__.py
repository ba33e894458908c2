"""`scripts/vm KERNEL COMMAND`: boot a stock kernel with this checkout inside, run a command there, and exit with its status."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from vm.architecture import Architecture
from vm.debian import Debian, VmError, mirror, require
from vm.emulators import EMULATORS, Files
from vm.job import Checkout, write_job
from vm.kernels import ARCHITECTURES, NEWEST, QEMU, QEMU_AARCH64, UML, WAYS, Kernels
from vm.machine import Bounds, preparing, raise_at_signals, run_directory, run_in_short_slices, run_machine
from vm.root import Root

TOP = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sockd-vm"
FAILED, TIMED_OUT = 125, 124
"""Statuses of this command itself, as those of timeout(1)."""
BOOT_S = {UML: 180, QEMU: 1800, QEMU_AARCH64: 1800}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line. Exits with status 2 and a message if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="scripts/vm",
        description="Boot one of Debian's kernels with this checkout inside, run a command in it, and exit with its status.",
        epilog=f"Exits {TIMED_OUT} if the command took too long, {FAILED} if the machine could not be had.",
    )
    parser.add_argument("kernel", nargs="?", help=f"a series, such as 6.1, or {NEWEST}")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="run as root in the checkout; one word is a line of shell"
    )
    parser.add_argument("--list", action="store_true", help="show the kernels that Debian has, and end")
    parser.add_argument("--prepare", action="store_true", help="only fetch and make what is kept in the cache")
    parser.add_argument(
        "--update", action="store_true", help="first fetch Debian's lists of packages anew, and drop older kernels"
    )
    parser.add_argument(
        "--way",
        choices=WAYS,
        default=UML,
        help="uml: quick (the default); qemu: thorough, 10 to 30 times slower; qemu-aarch64: another architecture",
    )
    parser.add_argument("--memory", type=int, default=3072, metavar="MB", help="the machine's memory (3072)")
    parser.add_argument(
        "--timeout", type=int, default=3600, metavar="S", help="the longest that the command may take (3600)"
    )
    parser.add_argument(
        "--cache", type=Path, default=CACHE, metavar="DIR", help="where files are kept (~/.cache/sockd-vm)"
    )
    parser.add_argument("--mirror", metavar="URL", help="of Debian, without /debian (the one of this host's apt)")
    given = parser.parse_args(arguments)
    if not given.list and not given.kernel:
        parser.error("which kernel? scripts/vm --list shows them")
    if not given.list and not given.prepare and not given.command:
        parser.error("which command?")
    if given.memory < 256 or given.timeout < 1:
        parser.error("--memory is at least 256, --timeout at least 1")
    return given


def main(arguments: list[str]) -> int:
    """Do what the command line says; the exit status."""
    given = parse(arguments)
    raise_at_signals()
    try:
        given.cache = given.cache.resolve()
        kernels = kernels_for(given, ARCHITECTURES[given.way])
        if given.update:
            kernels.debian.update()
            kernels.forget_older()
        if given.list:
            show(kernels_for(given, each) for each in dict.fromkeys(ARCHITECTURES.values()))
            return 0
        return boot(given, kernels)
    except TimeoutError as error:
        print(f"vm: {error}", file=sys.stderr)
        return TIMED_OUT
    except VmError as error:
        print(f"vm: {error}", file=sys.stderr)
        return FAILED


def kernels_for(given: argparse.Namespace, architecture: Architecture) -> Kernels:
    """The kernels of an architecture."""
    return Kernels(given.cache / "kernels", Debian.kept(given.cache, given.mirror or mirror(), architecture))


def show(all_kernels: Iterable[Kernels]) -> None:
    """Print a table of what there is."""
    print(f"{'kernel':8}{'way':14}package")
    for kernels in all_kernels:
        for way in kernels.ways:
            for series, packages in kernels.available(way).items():
                print(f"{series:8}{way:14}{packages[0]}")


def boot(given: argparse.Namespace, kernels: Kernels) -> int:
    """Prepare what is missing, and run the machine. Returns: the command's status. Raises: VmError, TimeoutError."""
    emulator, checkout = EMULATORS[given.way], Checkout(TOP)
    require(emulator.tools)
    series = kernels.choose(given.kernel, given.way)
    with preparing(given.cache):
        kernel = kernels.kernel(series, given.way)
        root = Root(given.cache, kernels.debian).image(checkout)
    if given.prepare:
        return 0
    run_in_short_slices()
    with run_directory(given.cache) as directory:
        files = Files(directory, kernel, root, directory / "job.tar")
        write_job(files.job, checkout, given.command)
        print(f"vm: booting Linux {series} ({given.way}, {given.memory} MB)", flush=True)
        return run_machine(emulator, files, Bounds(given.memory, BOOT_S[given.way], given.timeout))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
