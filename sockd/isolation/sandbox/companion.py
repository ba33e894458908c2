"""The interface of a sandbox to the initscript that runs during its start. Owns nothing."""

from __future__ import annotations

from typing import Protocol


class Companion(Protocol):
    """What works during a sandbox's start and holds memory for it: the run of an initscript."""

    @property
    def link_fd(self) -> int:
        """The descriptor that goes to the function with INIT."""

    @property
    def reserved_bytes(self) -> int:
        """What of the memory budget it holds."""

    def sandbox_ended(self) -> None:
        """The sandbox was killed, and does not need it any more."""

    def sandbox_gone(self) -> None:
        """Handle the end of the sandbox's last process: no process has its memory mapped any more."""
