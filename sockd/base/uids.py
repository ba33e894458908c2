"""The uids of one worker's confined processes, all around `sandbox.base_uid`.

What asks who a peer is (the page, the debugger's port) has to know each of them: none may be served as a user of the host.
"""

from __future__ import annotations

ROOT_UIDS = 1 << 30
"""The uids of the Zygotes and sandboxes of one farm: the worker's own interpreter from the base on, all others above it."""
CHILD_ZYGOTES = 128
"""Most child Zygotes of one Zygote, each with a block of uids; one that has ended counts while sandboxes of it live."""
KEPT_FOR_ROOTS = 16
"""Blocks that a Zygote with imports never gets, so that a root Zygote behind a wall always does."""
MOST_ZYGOTES = 96
"""Most Zygotes of a worker, as all but one may be children of one root. The blocks that are left are for those that were evicted
and whose sandboxes live on."""
ENGINE_BELOW, COMPILER_BELOW, RESOLVER_BELOW, AGENT_BELOW, IMPORTER_BELOW, PROXY_BELOW, NODE_BELOW = range(1, 8)
"""How far below the base: the initscript engine and compiler (unless `initscripts.uid` is set), the resolver of names, the agent
that serves images, the process that reads their layers, the proxy to ports of the host, and a
cache node."""


def confined(base_uid: int, engine_uid: int | None = None) -> list[range]:
    """All uids that a worker gives to what it confines, on the host. Args: engine_uid: `initscripts.uid`."""
    engine = [range(engine_uid - 1, engine_uid + 1)] if engine_uid is not None else []
    return [range(base_uid - NODE_BELOW, base_uid + 2 * ROOT_UIDS), *engine]
