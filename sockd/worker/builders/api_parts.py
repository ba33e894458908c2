"""What all APIs of a worker use, and the workers of a group share: keys of remote clients, and answers to repeated requests.

Owns nothing: the stack that it is given closes everything.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from sockd.http.access.keys import Keys
from sockd.http.replays import Replays
from sockd.worker.asynchronous import StoredEvents
from sockd.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class ApiParts:
    """Made by `open`."""

    keys: Keys
    replays: Replays

    @classmethod
    async def open(cls, worker: Worker, events: StoredEvents, stack: AsyncExitStack) -> ApiParts:
        """Open the keys of a worker alone in its state directory, or those of its group in the database.

        Raises: BadConfig: the file of the keys is damaged; DatabaseUnavailable."""
        path, http = worker.state.path / "keys.json", worker.config.http
        if worker.group is None or events.group is None:
            return cls(Keys.open(path), Replays(http))
        from sockd.http.access.postgres_keys import open_keys  # what a worker without a group does not need
        from sockd.http.postgres_answers import PostgresAnswers

        database = worker.group.database
        answers = PostgresAnswers(database, events.group.owner, http)
        stack.push_async_callback(answers.aclose)
        return cls(await open_keys(database, worker.group.following, path), Replays(http, answers))
