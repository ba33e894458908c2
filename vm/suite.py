"""`make test-kernels`: the demo, the attacks, and the tests of what differs between kernels, on three stock kernels in turn."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from vm.kernels import NEWEST, QEMU, UML

VM = Path(__file__).parent.parent / "scripts/vm"
MACHINES = (("6.1", UML), ("6.12", UML), (NEWEST, QEMU))
"""The kernels of Debian 12 and 13, and the newest: in the order of their speed."""
FOLDERS = "tests/linux tests/isolation/sandbox tests/images/store tests/isolation/roots tests/isolation/networks"
GROUPS = ",".join("ABCDEFGHIJKNPS")
COMMANDS = {
    "demo": "make demo",
    "selftest": f"make faults ARGS='--group {GROUPS}'",
    "tests": f"make test ARGS='{FOLDERS}'",
}
LONGEST_S = {UML: 2 * 3600, QEMU: 12 * 3600}
MEMORY_MB = {"demo": 4096, "selftest": 3072, "tests": 3072}


class Result(NamedTuple):
    """One command on one kernel."""

    kernel: str
    way: str
    command: str
    status: int
    minutes: float


def main(arguments: list[str]) -> int:
    """Run the commands on each kernel, and print a table. Returns: 1 if one of them has failed."""
    parser = argparse.ArgumentParser(prog="make test-kernels ARGS=...", description=__doc__)
    parser.add_argument(
        "--kernel", action="append", metavar="KERNEL:WAY", help="instead of the three, such as 6.18:qemu"
    )
    parser.add_argument("--only", choices=COMMANDS, action="append", help="this command alone")
    parser.add_argument("vm", nargs="*", metavar="-- OPTION", help="of scripts/vm, such as --cache DIR")
    given = parser.parse_args(arguments)
    machines = [tuple(each.split(":", 1)) for each in given.kernel] if given.kernel else MACHINES
    results = [run(kernel, way, name, given.vm) for kernel, way in machines for name in given.only or COMMANDS]
    print(f"\n{'kernel':8}{'way':6}{'status':>6}{'minutes':>9}  command")
    for each in results:
        print(f"{each.kernel:8}{each.way:6}{each.status:6}{each.minutes:9.1f}  {COMMANDS[each.command]}")
    return int(any(each.status for each in results))


def run(kernel: str, way: str, name: str, options: list[str]) -> Result:
    """Run one command in a machine of its own."""
    began = time.monotonic()
    bounds = ["--memory", str(MEMORY_MB[name]), "--timeout", str(LONGEST_S[way])]
    done = subprocess.run([VM, "--way", way, *bounds, *options, kernel, COMMANDS[name]], check=False)
    return Result(kernel, way, name, done.returncode, (time.monotonic() - began) / 60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
