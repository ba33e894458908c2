"""What this process has read: which reply of its initscript belongs to which of its calls.

POLICY: a prefetched reply is served once, to the very same RPC under the same number, and only before anything left this
sandbox that may have been a write: to any service, by any code (`sockd_initscript.egress`). SOCKD_STORAGE_MAX_AGE_S bounds
the age of a reply as well; without it the first request does, because the link ends with its answer.

Calls are numbered in the order in which the function makes them, those that go to the network included: a call
that differs from what the script expected costs itself, and the next one is compared under its own number again.
With SOCKD_STORAGE_NAMING=hash the number is a hash of the call, and their order does not matter.
"""

from __future__ import annotations

import itertools
import os
import time

import sockd_initscript
from sockd_initscript.egress import may_be_stale, reading

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from sockd_storage_lib.sockd_initscript.region import Message

    T = TypeVar("T")

HASH = 1 << 63
"""The top bit: a number that is a hash is never one of a count."""
SUCCESS = (200, 206)

calls = itertools.count()
"""The numbers of this process's reads."""
_served: set[int] = set()


def message_id(method: str, bucket: str, key: str) -> int:
    """The number of a call by its arguments: FNV-1a of "method NUL bucket NUL key" in 64 bits, the top one set."""
    value = 0xCBF29CE484222325
    for byte in f"{method}\0{bucket}\0{key}".encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value | HASH


class Read:
    """One read of the function. Make it when the call is made: it takes the next number."""

    def __init__(
        self, rpc: list[str], bucket: str, key: str, *, matches: Callable[[list[str]], bool] | None = None
    ) -> None:
        """
        Args:
            rpc: what an initscript would have sent, in the engine's words.
            bucket, key: what it reads, for a number by hash.
            matches: whether another RPC is the same; by default if all its words are."""
        self._rpc = rpc
        self._matches = matches or rpc.__eq__
        self._started = time.monotonic_ns()
        self._number = next(calls)
        if os.environ.get("SOCKD_STORAGE_NAMING") == "hash":
            self._number = message_id(rpc[0].rpartition(".")[2], bucket, key)

    def prefetched(self) -> Message | None:
        """The reply to it that the initscript has fetched, or is fetching; None: it is for the network."""
        link = sockd_initscript.link()
        if link is None or self._number in _served or may_be_stale():
            return None
        try:
            message: Message = link.reply(self._number, self._matches, *patience())
        except (sockd_initscript.NoMessage, OSError):
            return None
        if message.status not in SUCCESS or may_be_stale():  # it was waited for, and other threads went on meanwhile
            return None
        _served.add(self._number)
        return message

    def from_network(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return what `call` returns. The trace gets the read also when it raises, as it has had its number."""
        try:
            with reading():
                return call(*args, **kwargs)
        finally:
            self.done("network")

    def done(self, served: str) -> None:
        """Tell the trace: "region" or "network"."""
        link = sockd_initscript.link()
        if link is not None:
            link.report_read(self._rpc, served, self._started, time.monotonic_ns())


def patience() -> tuple[float, float]:
    """Seconds to wait for a reply that is on its way, and for word of one that might be."""
    environ = os.environ
    return float(environ.get("SOCKD_STORAGE_WAIT_S", 10)), float(environ.get("SOCKD_STORAGE_GRACE_S", 0.1))
