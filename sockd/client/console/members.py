"""The live workers of a group, asked at once for what each has; a worker without others is asked alone.

    POLICY: a worker that does not answer within the time that the asked worker gives it (`WorkerSilent`) is named on stderr, and
    what the others have is shown. The command fails when no worker answers.

Owns the threads that ask.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from sockd.client.console.client import NO_QUERY, Management, Query
from sockd.client.console.output import NOT_FOUND, Failure, say

AT_ONCE = 16
"""Workers that are asked at once for something that ends."""
Line = dict[str, Any]


class Answered(NamedTuple):
    """What one worker has answered."""

    worker: str
    """Its name; empty: there are no others."""
    answer: Any


class Members:
    """All workers that a command is about."""

    def __init__(self, management: Management, names: Sequence[str] = (), here: str = "") -> None:
        """Args: names: the workers of a group; none: one worker alone; here: the one whose management API this is."""
        self._managements = {name: management if name == here else management.of_member(name) for name in names} or {
            "": management
        }
        self.are_several = bool(names)

    @classmethod
    def of(cls, management: Management) -> Members:
        """Return the live workers of the group, or the one that --worker selects. Raises: Failure: no worker answers."""
        if management.member:
            return cls(management)
        try:
            rows = management.get("workers")
        except Failure as failure:
            if not failure.kind:
                raise
            if failure.kind == "Database.Unavailable":
                say("the database of the group is away: this worker alone is shown")
            return cls(management)
        live = {row["name"]: row.get("here", False) for row in rows if row["state"] != "gone"}
        if len(live) < 2:
            return cls(management)
        return cls(management, [*live], next((name for name, is_here in live.items() if is_here), ""))

    def get(self, *path: str, query: Query = NO_QUERY, note: Callable[[str], object] = say) -> list[Answered]:
        """Ask all workers; return the answers of those that have one, by name.

        Args: note: called with the words about each of the others. Raises: Failure: none has one."""

        def ask(name: str) -> Answered | Failure:
            try:
                return Answered(name, self._managements[name].get(*path, query=query))
            except Failure as failure:
                return failure

        with ThreadPoolExecutor(min(len(self._managements), AT_ONCE)) as pool:
            found = list(pool.map(ask, self._managements))
        failures = [each for each in found if isinstance(each, Failure)]
        failures.sort(key=lambda failure: failure.exit_code == NOT_FOUND)  # what some lack, others may have
        answers = [each for each in found if isinstance(each, Answered)]
        if not answers:
            raise failures[0]
        for failure in failures:
            if failure.exit_code != NOT_FOUND:
                note(failure.message)
        return answers

    def rows(self, *path: str, query: Query = NO_QUERY) -> list[Line]:
        """Return the rows that all workers have of a list, each with its `worker` if they are several. Raises: Failure."""
        return [_marked(worker, row) for worker, answer in self.get(*path, query=query) for row in answer]

    def lines(self, *path: str, query: Query) -> Iterator[Line]:
        """Stream the lines of all workers as they come, until the last has ended. Raises: Failure: none has begun."""
        came: queue.SimpleQueue[Line | Failure | None] = queue.SimpleQueue()

        def follow(name: str) -> None:
            try:
                for line in self._managements[name].lines("GET", *path, query=query):
                    came.put(_marked(name, line))
                came.put(None)
            except Failure as failure:
                came.put(failure)

        for name in self._managements:
            threading.Thread(target=follow, args=(name,), daemon=True).start()
        ended: list[Failure | None] = []
        while len(ended) < len(self._managements):
            line = came.get()
            if isinstance(line, dict):
                yield line
                continue
            ended.append(line)
            if line is not None and self.are_several:
                say(line.message)
        if (failures := [each for each in ended if each is not None]) and len(failures) == len(ended):
            raise failures[0]


def _marked(worker: str, row: Mapping[str, Any]) -> Line:
    return {**row, "worker": worker} if worker else dict(row)
