"""Reports: what the engine tells of a run when it is over. Plain data that goes to JSON as it is.

All times are nanoseconds of CLOCK_MONOTONIC, which daemon, engine and sandbox share; 0 is "did not happen".
"""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal[
    "exit", "abort", "trap", "deadline", "cpu", "memory", "cancelled", "bad_module", "busy", "record"
]  # fmt: skip
"""How a run ended.

exit        the guest returned from `boot` or called `exit`
abort       it called `abort_launch`
trap        it trapped, or a host call met a bug of ours
deadline    it ran longer than its budget says
cpu         it computed longer than its budget says
memory      its linear memory did not suffice
cancelled   the app or the daemon had no more use for it
bad_module  its module could not be loaded, or the function was not defined
busy        the engine runs as many as it may
record      there was no guest: the run only heard what the app read"""

UNSIGNED = 0xFFFF_FFFF_FFFF_FFFF
"""Ids are u64: in the guest an i64 says the same bits."""


class RpcRecord(msgspec.Struct, kw_only=True):
    """One RPC of a guest."""

    id: int
    descriptor: list[str]
    status: int
    """As the service said (an HTTP status, 0 where there is none), or a negative errno."""
    queued_ns: int
    """The guest called send_rpc."""
    sent_ns: int = 0
    first_byte_ns: int = 0
    done_ns: int = 0
    bytes: int = 0
    connection: str = ""
    """"new" or "kept"."""
    parts: int = 0
    """Into how many ranges it was split."""
    reason: str = ""
    """Why it failed."""


class MessageRecord(msgspec.Struct):
    """One message to the app."""

    id: int
    sent_ns: int
    bytes: int


class AppRead(msgspec.Struct):
    """One read that the app says it did."""

    rpc: list[str]
    served: str
    """"region" or "network"."""
    start_ns: int
    end_ns: int
    why: str = ""
    """Why it did not come from the region, or what had to be asked before it could."""


class RunReport(msgspec.Struct, kw_only=True):
    """All there is to say of a run that is over."""

    run: int
    outcome: Outcome
    status: int = 0
    message: str = ""
    arrived_ns: int = 0
    """The invocation arrived at the daemon."""
    started_ns: int = 0
    """The guest was entered."""
    ended_ns: int = 0
    """The guest had ended; of a run without one, the app was gone."""
    region_bytes: int = 0
    rpcs: list[RpcRecord] = []
    messages: list[MessageRecord] = []
    reads: list[AppRead] = []
    log: str = ""
    cut: bool = False
    """Whether the lists are shorter than what happened."""
