"""Keeps the history over a restart: a file in the state directory, written once a minute while there are requests.

Owns the file and the timer. A file that cannot be read is no reason not to start: the history begins anew. One that cannot be
written (a full disk) is written a minute later; only the first failure in a row is logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

import msgspec

from sockd.observe.history import MINUTE_S, History, Minute, Rows
from sockd.observe.recent import SLOT_NS, Recent

FORMAT = 1
SETTLED_S = SLOT_NS / 1e9 + 1
"""So long after a minute's end its last slot is over."""
_log = logging.getLogger(__name__)


class KeptHistory(msgspec.Struct, forbid_unknown_fields=True):
    """The file."""

    format: int
    minutes: dict[int, dict[str, Minute]]


class HistoryKeeper:
    """`start` begins to keep it; `aclose` writes what there is."""

    def __init__(self, recent: Recent, history: History, path: Path) -> None:
        """Args: recent: hands its slots on to `history`."""
        self._recent = recent
        self._history = history
        self._path = path
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False

    def start(self) -> None:
        """Close each minute from now on."""
        self._arm()

    async def aclose(self) -> None:
        """Close also the minute that is not over, and write it. Safe to call twice."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if self._writing is not None:
            await self._writing
        self._recent.settle(time.monotonic_ns() + SLOT_NS)
        self._history.close(time.time() + MINUTE_S)
        if rows := self._history.rows():
            await self._write(rows)

    def _arm(self) -> None:
        until_s = MINUTE_S - (time.time() - SETTLED_S) % MINUTE_S
        self._timer = asyncio.get_running_loop().call_later(until_s, self._minute_over)

    def _minute_over(self) -> None:
        self._arm()
        self._recent.settle(time.monotonic_ns())
        is_new = self._history.close(time.time())
        if is_new and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write(self._history.rows()))

    async def _write(self, rows: Rows) -> None:
        try:
            await asyncio.to_thread(publish, self._path, rows)
        except OSError as error:
            if not self._is_failing:
                _log.warning(
                    "%s cannot be written, the page's history will lack these minutes: %s", self._path.name, error
                )
            self._is_failing = True
        else:
            self._is_failing = False


def publish(path: Path, rows: Rows) -> None:
    """Replace the file. It need not survive a power cut, so nothing waits for the disk. Raises: OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    content = msgspec.json.encode(KeptHistory(FORMAT, rows))
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
    os.rename(temporary, path)


def load(path: Path) -> History:
    """The history of an earlier daemon; an empty one if there is none, or none that can be read."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=KeptHistory)
    except FileNotFoundError:
        return History()
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("%s cannot be read, the page's history begins anew: %s", path.name, error)
        return History()
    return History(kept.minutes if kept.format == FORMAT else {})
