"""What this process has read: which reply of its initscript belongs to which of its calls.

POLICY: a prefetched reply is served once, to the very same RPC. Once anything has left this sandbox that may have been a write,
to any service and by any code (`sockd_initscript.egress`), the engine is asked first whether the object is still the same.
SOCKD_STORAGE_MAX_AGE_S bounds the age of a reply that is served without asking; without it the first request does, because the
link ends with its answer.
"""

from __future__ import annotations

import os
import time

import sockd_initscript
from sockd_initscript.egress import may_be_stale

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from sockd_storage_lib.sockd_initscript.region import Message

    T = TypeVar("T")

SUCCESS = (200, 206)
CHECK_S = 1.0
"""How long the engine may take to find out whether an object is the same; the network takes as long."""

observer: Callable[[list[str]], object] | None = None
"""Called with each read of a process without an initscript, if that is to be known: the init of a snapshot."""


class Read:
    """One read of the function. Make it when the call is made."""

    def __init__(self, rpc: list[str]) -> None:
        """Args: rpc: what an initscript would have sent, in the engine's words."""
        self._rpc = rpc
        self._started = time.monotonic_ns()
        self._why = ""

    def prefetched(self, rpc: list[str] | None = None, *, take: bool = True) -> Message | None:
        """The reply to it that the initscript has fetched, or is fetching; None: it is for the network.

        Args: rpc: another RPC whose reply will do; take: the reply serves no further read."""
        link = sockd_initscript.link()
        if link is None:
            return None
        try:
            message: Message = link.reply(rpc or self._rpc, *patience(), take=take)
        except (sockd_initscript.NoMessage, OSError) as error:
            self._why = str(error)
            return None
        if message.status not in SUCCESS:
            self._why = f"the reply has status {message.status}"
            return None
        return message if self.may_serve(message) else None

    def may_serve(self, message: Message) -> bool:
        """Whether a reply is what the network would give now."""
        if not may_be_stale():
            return True
        link = sockd_initscript.link()
        self._why = "unchanged after what may have been a write"
        try:
            if link is not None and link.is_unchanged(message, CHECK_S):
                return True
        except (sockd_initscript.NoMessage, OSError) as error:
            self._why = str(error)
            return False
        self._why = "it may have changed after what may have been a write"
        return False

    def from_network(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return what `call` returns. The trace gets the read also when it raises."""
        try:
            return call(*args, **kwargs)
        finally:
            self.done("network")

    def done(self, served: str) -> None:
        """Tell the trace: "region" or "network"."""
        link = sockd_initscript.link()
        if link is not None:
            link.report_read(self._rpc, served, self._started, time.monotonic_ns(), self._why)
        elif observer is not None:
            observer(self._rpc)


def patience() -> tuple[float, float]:
    """Seconds to wait for a reply that is on its way, and for word of one that might be."""
    environ = os.environ
    return float(environ.get("SOCKD_STORAGE_WAIT_S", 10)), float(environ.get("SOCKD_STORAGE_GRACE_S", 0.1))
