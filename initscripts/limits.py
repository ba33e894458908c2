"""Limits: what a run may use (`Budget`), and what the engine process may hold (`EngineLimits`).

Plain data, parsed once from JSON; an unknown key or a value out of range is an error there and not later.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from sockd_initscripts import errors

MIB = 1024 * 1024
Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run of a function's initscript may use. Who asks for more gets an errno, and who takes it is stopped."""

    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=900)] = 10.0
    """From the start of the run to the end of the guest."""
    cpu_ms: Positive = 100
    """Milliseconds of a processor that the guest may use."""
    memory_bytes: Positive = 16 * MIB
    """The bytes of linear memory."""
    region_bytes: Count = 256 * MIB
    """The bytes of shared memory for replies and messages."""
    rpcs: Count = 1000
    connections: Count = 64
    messages: Count = 1000
    endpoints: list[str] | None = None
    """Where the guest may connect to; None is the engine's default, [] is nowhere."""
    private: list[str] | None = None
    """For a function with a private network, what that reaches, as `rpc.policy` reads it. Then the guest reaches nothing
    else, of this host only the ports that it names, and no address of IPv6."""


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine process may hold."""

    runs: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64
    """Guests that run at once; each has a thread. One more is answered with `busy`."""
    ready_threads: Annotated[int, msgspec.Meta(ge=1)] = 4
    """Threads made before the first run; more are made as they are needed, and kept."""
    links: Positive = 1024
    """App links that are open at once, of running guests and of those that have ended."""
    functions: Positive = 1024
    """Definitions."""
    modules: Positive = 256
    """Modules in memory; the others are loaded again from their files."""
    idle_connections: Count = 256
    """Connections kept for later runs, over all endpoints."""
    idle_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """How long an idle connection is kept."""
    denied_endpoints: list[str] | None = None
    """What no initscript may connect to, whatever its function allows; None: `policy.DENIED`."""
    denied_ports: list[int] = []
    """Ports of this host that no guest may reach: the daemon's own."""
    host_ports: list[int] = []
    """Ports of this host's loopback that private networks may reach, as far as their rules name them."""
    debug: bool = False
    """asyncio's debug mode, which names callbacks that took long."""


def parse_limits(text: str | bytes) -> EngineLimits:
    """The limits in a JSON object; raises WireError saying which key is wrong."""
    try:
        return msgspec.json.decode(text, type=EngineLimits)
    except msgspec.DecodeError as error:
        raise errors.WireError(f"limits: {error}") from error
