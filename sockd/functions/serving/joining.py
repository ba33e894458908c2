"""Joining a group: the functions that a worker had alone become functions of its group, once.

A function of which the group has one of this name already stays behind, with its file. Owns nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sockd.base.blocking import in_thread
from sockd.base.errors import CodeLost, ImageLost
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.function_store import Conflict, FunctionStore
from sockd.functions.registry.secrets import Vault
from sockd.functions.registry.sqlite_store import SqliteStore
from sockd.functions.serving.shared_files import SharedFiles

JOINED = "registry.joined.sqlite"
"""What the file of a worker's own functions is called afterwards."""

_log = logging.getLogger(__name__)


async def join(path: Path, vault: Vault, store: FunctionStore, shared: SharedFiles) -> None:
    """Give a group the functions that are in a worker's own file, if there is one. After a kill, it is done again.

    Raises: BadRegistry; DatabaseUnavailable, ChunkStoreFailed; OSError."""
    if not await in_thread(path.exists):
        return
    own = SqliteStore.open(path, vault)
    try:
        for function in await own.read():
            if function.deploys:
                await _give(function, store, shared)
    finally:
        await own.aclose()
    await in_thread(path.rename, path.with_name(JOINED))


async def _give(function: FunctionAggregate, store: FunctionStore, shared: SharedFiles) -> None:
    stored = await store.get(function.name)
    if stored.revision:
        if stored.deploys != function.deploys:
            _log.warning("the group has a function %s already; this worker's own stays in %s", function.name, JOINED)
        return
    try:
        for record in function.deploys:
            await shared.put(record)
        await store.put(function, expected=stored)
        _log.info("the function %s is a function of the group now", function.name)
    except (CodeLost, Conflict, ImageLost) as error:
        _log.warning("the function %s stays in %s: %s", function.name, JOINED, error.message)
