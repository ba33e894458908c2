"""The rooms of the source tree: the rows of the table in ARCHITECTURE.md, and which module is in which."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTED_AS = {folder: f"sockd_{folder}" for folder in ("initscripts", "storage_lib", "zygote")}
"""Folders of the repository that are installed, and imported, by another name."""
HOLD_ROOMS = ("sockd",)
"""Packages of several rooms: their `__init__.py` is in one of them, and the name alone in none."""


@dataclass(frozen=True)
class Room:
    """One row of the table: modules that may import each other."""

    level: int
    parts: tuple[str, ...]

    def holds(self, module: str) -> bool:
        return any(module == part or module.startswith(part + ".") for part in self.parts)


@functools.cache
def rooms() -> list[Room]:
    """The rows of the table: `| L4 | `sockd/isolation/sandbox` | ... |`."""
    rows = re.findall(r"^\| L(\d+) \| (.*?) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    return [
        Room(int(level), tuple(name_of(path) for path in re.findall(r"`(.*?)`", modules))) for level, modules in rows
    ]


def name_of(path: str | Path) -> str:
    """`zygote/forks/kept.py` as the import system calls it: `sockd_zygote.forks.kept`."""
    folder, slash, rest = str(path).removesuffix(".py").partition("/")
    name = (IMPORTED_AS.get(folder, folder) + slash + rest).replace("/", ".")
    package = name.removesuffix(".__init__")
    return name if package in HOLD_ROOMS else package


def rooms_of(module: str) -> list[Room]:
    """The rooms that hold a module: one, if the table is right."""
    member = f"{module}.__init__" if module in HOLD_ROOMS else module
    return [room for room in rooms() if room.holds(member)]
