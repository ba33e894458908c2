"""Which templates were used in the last day, kept for the next daemon: it makes those first that were used most.

Owns the file `templates.json` of the state directory.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from sockd.starts.templates.template import Template

KEPT_S = 86_400.0
_log = logging.getLogger(__name__)


class Used(msgspec.Struct, frozen=True):
    """One version's template, as it was used."""

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

    def note(self, templates: Iterable[Template]) -> None:
        """Remember how templates were used until now."""
        for template in templates:
            if template.starts:
                of = template.of
                self._used[of.name, of.number] = Used(of.name, of.number, template.starts, template.used_s)

    def keep(self, templates: Iterable[Template]) -> None:
        """Remember how templates were used until now, also if this daemon is killed, as far as a version is new."""
        self.note(templates)
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
