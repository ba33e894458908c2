"""What this process has read and written: which reply of its initscript belongs to which of its calls.

POLICY: a prefetched reply is served if its number and its RPC are those of the call, and nothing was written to what it
is about. Calls are numbered in the order in which the function makes them, those that go to the network included: a call
that differs from what the script expected costs itself, and the next one is compared under its own number again.
With SOCKD_STORAGE_NAMING=hash the number is a hash of the call, and their order does not matter.
"""

from __future__ import annotations

import itertools
import os
import time

import sockd_initscript

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from storage_lib.sockd_initscript.region import Message

    T = TypeVar("T")

HASH = 1 << 63
"""The top bit: a number that is a hash is never one of a count."""
SUCCESS = (200, 206)

calls = itertools.count()
"""The numbers of this process's reads."""
_written: set[tuple[str, str]] = set()


def message_id(method: str, bucket: str, key: str) -> int:
    """The number of a call by its arguments: FNV-1a of "method NUL bucket NUL key" in 64 bits, the top one set."""
    value = 0xCBF29CE484222325
    for byte in f"{method}\0{bucket}\0{key}".encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value | HASH


class Read:
    """One read of the function. Make it when the call is made: it takes the next number."""

    def __init__(
        self,
        rpc: list[str],
        bucket: str,
        key: str,
        *,
        is_prefix: bool = False,
        matches: Callable[[list[str]], bool] | None = None,
    ) -> None:
        """
        Args:
            rpc: what an initscript would have sent, in the engine's words.
            bucket, key: what it reads, in the words of `wrote`, and for a number by hash.
            is_prefix: it reads all keys that begin with `key`.
            matches: whether another RPC is the same; by default if all its words are."""
        self._rpc = rpc
        self._place = bucket, key, is_prefix
        self._matches = matches or rpc.__eq__
        self._started = time.monotonic_ns()
        self._number = next(calls)
        if os.environ.get("SOCKD_STORAGE_NAMING") == "hash":
            self._number = message_id(rpc[0].rpartition(".")[2], bucket, key)

    def prefetched(self) -> Message | None:
        """The reply to it that the initscript has fetched, or is fetching; None: it is for the network."""
        link = sockd_initscript.link()
        if link is None or was_written(*self._place):
            return None
        try:
            message: Message = link.reply(self._number, self._matches, *patience())
        except (sockd_initscript.NoMessage, OSError):
            return None
        return None if message.status not in SUCCESS or was_written(*self._place) else message

    def from_network(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """What `call` returns. The trace is told of it also when it raises, as it has had its number."""
        try:
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


def wrote(bucket: str, key: str) -> None:
    """Before anything is written: what was fetched of it earlier is served no more. The key "" stands for all."""
    _written.add((bucket, key))


def was_written(bucket: str, key: str, is_prefix: bool) -> bool:
    """Whether this process wrote to it, or to any key that begins with it."""
    if is_prefix and _written:
        return any(place == bucket and name.startswith(key) for place, name in list(_written))
    return (bucket, key) in _written or (bucket, "") in _written
