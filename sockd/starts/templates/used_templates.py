"""Which versions were started in the last day that are to have templates, kept for the next daemon: the most used are made first.

Owns the file `templates.json` of the state directory.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import msgspec

KEPT_S = 86_400.0
_log = logging.getLogger(__name__)


class Used(msgspec.Struct, frozen=True):
    """One version that is to have a template, as it was started."""

    name: str
    number: str
    starts: int
    used_s: float
    """Unix time of the last start."""


class UsedTemplates:
    """Versions whose templates an earlier daemon has used, and the file in which those of this one are saved."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._used = {(used.name, used.number): used for used in read(path)}
        self._saved = set(self._used)
        """The versions in the file."""

    def starts_of(self, name: str, number: str) -> int:
        """How many starts of a version there were in the last day, as far as it is known."""
        used = self._used.get((name, number))
        return used.starts if used is not None and used.used_s > time.time() - KEPT_S else 0

    def numbers(self) -> list[tuple[str, str]]:
        """The functions and versions whose templates were used in the last day, the most used first."""
        lately = [used for used in self._used.values() if used.used_s > time.time() - KEPT_S]
        return [(used.name, used.number) for used in sorted(lately, key=lambda used: -used.starts)]

    def note(self, name: str, number: str, starts: int, used_s: float) -> None:
        """Remember how often a version was started until now, and when last (Unix time)."""
        self._used[name, number] = Used(name, number, starts, used_s)

    def keep(self) -> None:
        """Save what was recorded for the case that this daemon is killed, if a version is new."""
        if self._used.keys() - self._saved:
            self.save()

    def save(self) -> None:
        """Publish it for the next daemon. A failure is logged."""
        self._saved = set(self._used)
        lately = [used for used in self._used.values() if used.used_s > time.time() - KEPT_S]
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_bytes(msgspec.json.encode(lately))
            os.replace(temporary, self._path)
        except OSError as error:
            _log.warning("which templates were used cannot be saved: %s", error.strerror)


def read(path: Path) -> list[Used]:
    """What an earlier daemon has saved; nothing, if that cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Used])
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        _log.warning("which templates were used cannot be read: %s", error)
        return []
