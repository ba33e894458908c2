"""Whether this host has what private networks need, and what in it would stop their packets. A worker runs without them.

A network is tried in a host of its own, a new network namespace, and read by pyroute2, which has nothing in common with our code.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sockd.base.extras import installing
from sockd.client.cli.doctor.checks import CONTAINERS, Check, probed
from sockd.client.console.client import Management
from sockd.client.console.output import Failure
from sockd.isolation.networks.namespace_thread import have_nft
from sockd.isolation.networks.uplink import judges_by_destination
from sockd.linux import capabilities
from sockd.linux.network import network_namespaces

NAME = "private networks"
LINKS = "sd*"
"""The names of workers' links to the host."""
OPTIONS = ("VETH", "NF_TABLES", "NF_TABLES_INET", "NFT_CT", "NFT_REJECT", "NFT_MASQ")
KERNEL = "use a kernel with " + ", ".join(f"CONFIG_{name}" for name in OPTIONS)
SYSCTLS = "/proc/sys/net/ipv4/ip_forward"
CONTAINER_FIX = (
    "docker run --cap-add NET_ADMIN --security-opt systempaths=unconfined --sysctl net.ipv4.ip_forward=1 ...  # "
    + CONTAINERS
)
FORWARD = "sysctl -w net.ipv4.ip_forward=1  # or let the worker do it: [network] ip_forward = true"


def private_networks(state_dir: Path | None = None) -> Check:
    """veth, nf_tables and nft(8), forwarding, and foreign rules that drop what is forwarded; of a worker that runs, first of
    all whether it has them switched off."""
    if state_dir is not None and are_switched_off(state_dir):
        return Check(
            NAME, None, "switched off in the worker's configuration", "[network] private = true, and a restart"
        )
    if not have_nft():
        return Check(NAME, None, "not for functions: nft is not installed", "apt-get install nftables")
    if find_spec("pyroute2") is None:
        found = "not tested: the test reads networks with pyroute2, which is not installed"
        return Check(NAME, None, found, installing("doctor"))
    works = probed(NAME, "private_network", KERNEL)
    if not works.ok:
        is_contained = not capabilities.has(capabilities.CAP_NET_ADMIN) or not os.access(SYSCTLS, os.W_OK)
        return Check(NAME, None, f"not for functions: {works.found}", CONTAINER_FIX if is_contained else works.fix)
    if network_namespaces.sysctl("ipv4/ip_forward") != "1":
        return Check(NAME, None, "not for functions: the host forwards no packets (net.ipv4.ip_forward is 0)", FORWARD)
    dropping = list(dropping_chains())
    if dropping:
        family, table, chain = dropping[0]
        where = f"{family} {table} {chain}"
        fix = (
            f'nft insert rule {where} iifname "{LINKS}" accept && '
            f'nft insert rule {where} oifname "{LINKS}" ct state related,established accept'
        )
        if table == "filter" and chain == "FORWARD":  # Docker's, or another's by iptables
            fix += "  # where Docker runs, in DOCKER-USER, which it leaves alone"
        return Check(NAME, None, f"not beyond the host: the chain {where} drops what is forwarded", fix)
    if not judges_by_destination():
        found = "the kernel cannot tell the host's addresses in a rule; no port that the host translates is reached"
        return Check(NAME, None, found, "use a kernel with CONFIG_NFT_FIB_IPV4")
    return Check(NAME, True, "veth, nf_tables and forwarding work")


def are_switched_off(state_dir: Path) -> bool:
    """Whether a worker runs there that makes none (`network.private`)."""
    try:
        return Management(state_dir).get("status")["networks"].get("private") is False
    except Failure:
        return False  # no worker runs


def dropping_chains() -> Iterator[tuple[str, str, str]]:
    """Chains at the forward hook of IPv4 that drop what no rule accepts, and have no rule for our links: family, table, name."""
    completed = subprocess.run(["nft", "-j", "list", "ruleset"], capture_output=True, text=True, check=True)
    rules: list[dict[str, Any]] = json.loads(completed.stdout)["nftables"]
    passing = {_place(each["rule"]) for each in rules if "rule" in each and LINKS in json.dumps(each["rule"])}
    for chain in (each["chain"] for each in rules if "chain" in each):
        is_dropping = chain.get("hook") == "forward" and chain.get("policy") == "drop"
        # A chain that jumps to one with such a rule is taken to be open: Docker's FORWARD jumps to DOCKER-USER.
        passes = any(place[:2] == (chain["family"], chain["table"]) for place in passing)
        if is_dropping and chain["family"] in ("ip", "inet") and not passes:
            yield chain["family"], chain["table"], chain["name"]


def _place(rule: dict[str, Any]) -> tuple[str, str, str]:
    return rule["family"], rule["table"], rule["chain"]
