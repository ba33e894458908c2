"""The snapshots of functions: which versions are to have one, and what became of it.

Owns the tasks that make the snapshots of versions published just now. The templates themselves are `starts/templates`'s.
"""

from __future__ import annotations

import asyncio
import contextlib

from sockd.base.errors import SockdError
from sockd.base.notes import Note, Progress
from sockd.functions.serving.live_functions import LiveFunctions
from sockd.functions.serving.version import Version
from sockd.starts.templates.templates import Entry, State, Templates


class Snapshots:
    """The snapshots of all functions of a worker."""

    def __init__(self, live: LiveFunctions, templates: Templates | None) -> None:
        """Args: templates: None: no version has a snapshot."""
        self._live = live
        self._templates = templates
        self._expecting: dict[tuple[str, int], asyncio.Task[None]] = {}
        """Versions that were published just now, and are to have a snapshot."""

    def of(self, version: Version) -> Entry | None:
        """What is known of a version's snapshot; None: it is to have none."""
        return (
            self._templates.entry(version.program) if self._templates is not None and version.config.snapshot else None
        )

    def state(self, name: str, number: int | None = None) -> str:
        """The state of the snapshot of a function, or of a published version, for views; empty: it is to have none."""
        live = self._live
        function = live.by_name.get(name) if number is None else live.published.find(name, number)
        entry = self.of(function.version) if function is not None else None
        if entry is None and number is not None and (name, number) in self._expecting:
            return State.WAITING.value
        return entry.state.value if entry is not None else ""

    def expect(self, name: str, number: int) -> None:
        """Make the snapshot of a version that was published, before its first request."""

        async def get() -> None:
            try:
                with contextlib.suppress(SockdError, OSError):  # its first request tells
                    await self._live.published.get(name, number)
            finally:
                del self._expecting[name, number]

        self._expecting[name, number] = asyncio.get_running_loop().create_task(get())

    async def settled(self, version: Version, progress: Progress) -> None:
        """Wait until it is decided whether a version that serves already has a snapshot, and say so."""
        if self._templates is None:
            return
        progress("running the init once more, for the snapshot")
        entry = await self._templates.settled(version.program)
        if entry is None:
            return  # another deploy has replaced it
        if entry.template is None:
            progress(Note(f"no snapshot, and each start runs its own init: {entry.reason}"))
            return
        report, size_mb = entry.template.report, entry.template.memory_bytes / (1 << 20)
        progress(f"snapshot made: it saves each start {report.seconds:.2f} s of init, and holds {size_mb:.0f} MB")
        for address in report.closed:
            progress(
                Note(f"the connection to {address} is closed by the snapshot: clients connect again in each start")
            )
        for note in report.notes:
            progress(Note(note))
