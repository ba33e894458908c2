"""`make test-kernels`: the demo, the attacks, and the tests of what differs between kernels, on three stock kernels in turn.

Most runs in user-mode Linux; private networks, which it has not, in QEMU.

Each command has a machine of its own, and a line in a file says what became of it. A run that was interrupted, or in which
commands have failed, goes on with those that have not passed with the same checkout.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from vm.__main__ import CACHE, TOP
from vm.job import Checkout
from vm.kernels import NEWEST, QEMU, QEMU_AARCH64, UML

VM = Path(__file__).parent.parent / "scripts/vm"
SERIES = ("6.1", "6.12", NEWEST)
"""The kernels of Debian 12 and 13, and the newest that it has."""
KINDS = {UML: ("demo", "selftest", "tests"), QEMU: ("networks",)}
MACHINES = tuple((kernel, way, kinds) for way, kinds in KINDS.items() for kernel in SERIES)
GROUPS = "ABCDEFGHIJKPS"
FOLDERS = (
    "tests/linux",
    "tests/isolation/sandbox",
    "tests/images/store",
    "tests/isolation/roots",
)
COMMANDS = {
    "demo": ("make demo",),
    "selftest": tuple(f"make faults ARGS='--group {group}'" for group in GROUPS),
    "tests": tuple(f"make test ARGS={folder}" for folder in FOLDERS),
    "networks": ("make faults ARGS='--group N'", "make test ARGS=tests/isolation/networks"),
}
LONGEST_S = {UML: 2 * 3600, QEMU: 12 * 3600, QEMU_AARCH64: 12 * 3600}
MEMORY_MB = {"demo": 4096, "selftest": 3072, "tests": 3072, "networks": 3072}


class Part(NamedTuple):
    """One command on one kernel."""

    kernel: str
    way: str
    command: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a part."""

    checkout: str
    """The digest of the checkout that it ran with."""
    kernel: str
    way: str
    command: str
    status: int
    minutes: float

    @property
    def part(self) -> Part:
        """The part."""
        return Part(self.kernel, self.way, self.command)


class Results:
    """The results of all runs on this machine, in a file, a line each."""

    def __init__(self, file: Path, checkout: str) -> None:
        """Args: checkout: the digest of the one that is tested."""
        self._file, self._checkout = file, checkout
        lines = file.read_text().splitlines() if file.exists() else []
        self._all = [Result(**json.loads(line)) for line in lines]

    def add(self, part: Part, status: int, minutes: float) -> None:
        """Keep what became of a part with this checkout."""
        result = Result(self._checkout, *part, status, round(minutes, 2))
        self._all.append(result)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")

    def last(self, part: Part) -> Result | None:
        """The last result of a part with this checkout."""
        return next(
            (each for each in reversed(self._all) if (each.checkout, each.part) == (self._checkout, part)), None
        )

    def passed(self, part: Part) -> bool:
        """Whether a part has passed with this checkout."""
        return (last := self.last(part)) is not None and last.status == 0

    def expected_minutes(self, part: Part) -> float | None:
        """How long a part took the last time, with any checkout. Returns: None if it has not run here."""
        return next((each.minutes for each in reversed(self._all) if each.part == part), None)


def main(arguments: list[str]) -> int:
    """Run the commands on each kernel that have not passed yet, and print a table. Returns: 1 if one of them has failed."""
    parser = argparse.ArgumentParser(prog="make test-kernels ARGS=...", description=__doc__)
    parser.add_argument(
        "--kernel", action="append", metavar="KERNEL[:WAY]", help="all commands on this one, such as 6.18:qemu"
    )
    parser.add_argument("--only", choices=COMMANDS, action="append", help="these commands alone")
    parser.add_argument("--again", action="store_true", help="run, too, what has passed with this checkout")
    parser.add_argument(
        "--results", type=Path, default=CACHE / "results.jsonl", metavar="FILE", help="of all runs (~/.cache/sockd-vm)"
    )
    parser.add_argument("vm", nargs="*", metavar="-- OPTION", help="of scripts/vm, such as --cache DIR")
    given = parser.parse_args(arguments)
    chosen = given.only or list(COMMANDS)
    parts = {
        Part(kernel, way, command): kind
        for kernel, way, kinds in (map(_named, given.kernel) if given.kernel else MACHINES)
        for kind in kinds
        if kind in chosen
        for command in COMMANDS[kind]
    }
    results = Results(given.results, Checkout(TOP).digest())
    left = [part for part in parts if given.again or not results.passed(part)]
    print(f"{len(parts)} commands, {len(parts) - len(left)} passed before; {_estimate(results, left)}", flush=True)
    for part in left:
        results.add(part, *run(part, MEMORY_MB[parts[part]], given.vm))
    print(f"\n{'kernel':8}{'way':14}{'status':>6}{'minutes':>9}  command")
    last = [each for part in parts if (each := results.last(part))]
    for each in last:
        print(f"{each.kernel:8}{each.way:14}{each.status:6}{each.minutes:9.1f}  {each.command}")
    return int(any(each.status for each in last))


def run(part: Part, memory_mb: int, options: list[str]) -> tuple[int, float]:
    """Run one command in a machine of its own. Returns: its status, and the minutes that it took."""
    began = time.monotonic()
    bounds = ["--memory", str(memory_mb), "--timeout", str(LONGEST_S[part.way])]
    print(f"\n{part.kernel} ({part.way}): {part.command}", flush=True)
    done = subprocess.run([VM, "--way", part.way, *bounds, *options, part.kernel, part.command], check=False)
    return done.returncode, (time.monotonic() - began) / 60


def _named(machine: str) -> tuple[str, str, Iterable[str]]:
    """A machine of the command line, which runs all kinds of commands."""
    kernel, _, way = machine.partition(":")
    return kernel, way or UML, COMMANDS


def _estimate(results: Results, left: list[Part]) -> str:
    known = [each for part in left if (each := results.expected_minutes(part)) is not None]
    new = f", and {len(left) - len(known)} that never ran here" if len(known) < len(left) else ""
    return f"the others took {sum(known):.0f} minutes the last time{new}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
