"""What sandboxes may do with the host's network: none of the worker's ports, no metadata service, so many sockets.

Owns nothing: the programs and maps are the cgroup tree's. A host that cannot guard is warned about, once, at start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from ipaddress import ip_network

from sockd.base.config import HttpConfig, NetworkConfig, SandboxConfig
from sockd.base.errors import BadConfig
from sockd.linux.bpf.address_guard import DNS_PORT, MOST_NETWORKS, Network
from sockd.linux.bpf.socket_counts import NO_LIMIT, Account, SocketCounts, ephemeral_ports
from sockd.linux.cgroups.tree import CgroupTree
from sockd.linux.network.resolv_conf import nameservers

DEFAULT_PORT = int(HttpConfig().listen.rpartition(":")[2])
"""Where a client looks for a worker without another address; no function may answer there, wherever ours listens."""

_log = logging.getLogger(__name__)


def guard_sockets(tree: CgroupTree, config: SandboxConfig, network: NetworkConfig) -> None:
    """Keep what runs in our cgroups off our ports and denied networks, and count its sockets, as far as this kernel can.

    Raises: BadConfig."""
    denied = denied_networks(network)
    try:
        unguarded = tree.deny_networks(denied, [(each, DNS_PORT) for each in {*nameservers(), *network.nameservers}])
        if unguarded:
            _log.warning(
                "functions with the host's network may reach metadata services (see `sockd doctor`): %s", unguarded
            )
    except OSError as error:
        _log.warning("functions with the host's network reach metadata services (see `sockd doctor`): %s", error)
    try:
        tree.guard_ports()
        tree.ports.hold(DEFAULT_PORT)
    except OSError as error:
        _log.warning("functions can bind ports that clients may take for this worker's (see `sockd doctor`): %s", error)
    try:
        tree.count_sockets(socket_limit(config))
    except OSError as error:
        _log.warning("functions can open as many sockets as there are ports (see `sockd doctor`): %s", error)


def denied_networks(config: NetworkConfig) -> list[Network]:
    """`network.host_deny`. Raises: BadConfig."""
    if len(config.host_deny) > MOST_NETWORKS // 2:
        raise BadConfig(f"network.host_deny has more than {MOST_NETWORKS // 2} networks")
    try:
        return [ip_network(each) for each in config.host_deny]
    except ValueError as error:
        raise BadConfig(f"network.host_deny: {error}") from None


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
