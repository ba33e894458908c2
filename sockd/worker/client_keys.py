"""The keys of remote clients: those of a worker alone are in its state directory, those of a group in its database.

Owns nothing.
"""

from __future__ import annotations

from sockd.http.access.keys import Keys
from sockd.worker.worker import Worker


async def open_client_keys(worker: Worker) -> Keys:
    """Raises: BadConfig: the file of the keys is damaged; DatabaseUnavailable."""
    path = worker.state.path / "keys.json"
    if worker.group is None:
        return Keys.open(path)
    from sockd.http.access.postgres_keys import open_keys  # what a worker without a group does not need

    return await open_keys(worker.group.database, worker.group.following, path)
