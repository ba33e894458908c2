"""What sandboxes may do with the host's ports: none of the worker's, and so many sockets of a sandbox, a function, and all.

Owns nothing: the programs and maps are the cgroup tree's. A host that cannot guard is warned about, once, at start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from sockd.kernel.cgroups import CgroupTree
from sockd.kernel.socket_counts import NO_LIMIT, Account, SocketCounts, ephemeral_ports
from sockd.plain.config import HttpConfig, SandboxConfig

DEFAULT_PORT = int(HttpConfig().listen.rpartition(":")[2])
"""Where a client looks for a worker that was told no other place; no function may answer there, wherever ours listens."""

_log = logging.getLogger(__name__)


def guard_sockets(tree: CgroupTree, config: SandboxConfig) -> None:
    """Keep what runs in our cgroups off our ports, and count its sockets, as far as this kernel can."""
    try:
        tree.guard_ports()
        tree.ports.hold(DEFAULT_PORT)
    except OSError as error:
        _log.warning("functions can bind ports that clients may take for this worker's (see `sockd doctor`): %s", error)
    try:
        tree.count_sockets(socket_limit(config))
    except OSError as error:
        _log.warning("functions can open as many sockets as there are ports (see `sockd doctor`): %s", error)


def socket_limit(config: SandboxConfig) -> int:
    """IP sockets that all sandboxes may have open together. The other half of the ports is left to the host."""
    configured = config.sockets
    return ephemeral_ports() // 2 if configured is None else max(0, min(configured, NO_LIMIT))


def function_accounts(config: SandboxConfig, sockets: SocketCounts) -> Callable[[], Account]:
    """Makes the account of one function's sockets."""
    configured = config.function_sockets
    return partial(
        sockets.account, socket_limit(config) // 2 if configured is None else max(0, min(configured, NO_LIMIT))
    )
