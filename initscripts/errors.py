"""Every error that the engine raises on purpose.

InitscriptError
 ├─ BadModule      the module can never run: malformed, unknown import, too large, not of our own compile
 ├─ RegionFull     no room in the run's region; to the guest: ENOSPC
 ├─ CallFailed     a host call ends with this errno; the guest sees its negative
 ├─ GuestStopped   unwinds a guest that is to run no further; says nothing, the run's own state does
 └─ WireError      a datagram that breaks the protocol; its sender is not listened to any longer
"""

from __future__ import annotations

import os


class InitscriptError(Exception):
    """The root of the tree; never raised as itself."""


class BadModule(InitscriptError):
    """The module can never run; `reason` is one line for its developer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RegionFull(InitscriptError):
    """The region has no room for a buffer."""


class CallFailed(InitscriptError):
    """A host call of the guest ends with `errno` (positive here, negative in the guest)."""

    def __init__(self, errno: int) -> None:
        super().__init__(os.strerror(errno))
        self.errno = errno


class GuestStopped(InitscriptError):
    """Raised through the guest's frames to unwind them.

    wasmtime-py keeps a host function's exception in a global of its module, where it reaches another thread now and then:
    code that catches one must conclude nothing from it, and look at the state of the run that it unwound."""


class WireError(InitscriptError):
    """A datagram that is not what the protocol says."""
