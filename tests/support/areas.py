"""The areas of the source tree: the table in CONTRIBUTING.md. `python -m tests.support.areas NAME` prints an area's tests.

Owns nothing. scripts/test runs what this prints for `make test AREA=NAME`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| .*? \| (.*?) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Area:
    """One row of the table.

    Attributes:
        code: the files and folders of the area, from the root of the repository.
        tests: files and folders in tests/, as patterns for `Path.glob`.
    """

    name: str
    code: tuple[str, ...]
    tests: tuple[str, ...]

    def test_paths(self) -> list[str]:
        """The tests that exist, sorted. A pattern without a file gives nothing."""
        found = {path for pattern in self.tests for path in ROOT.glob(pattern)}
        return sorted(str(path.relative_to(ROOT)) for path in found)


def areas() -> dict[str, Area]:
    """The areas by their names, in the order of the table."""
    rows = ROW.findall((ROOT / "CONTRIBUTING.md").read_text())
    return {name: Area(name, _paths(code), _paths(tests)) for name, code, tests in rows}


def _paths(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`(.*?)`", cell))


def main(name: str) -> int:
    """Print the tests of an area, one path a line. Returns: the exit status, 2 if there is no such area."""
    known = areas()
    if name not in known:
        print(f"there is no area {name!r}; the areas are {', '.join(known)}", file=sys.stderr)
        return 2
    print("\n".join(known[name].test_paths()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
