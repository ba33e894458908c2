"""The interface of a sandbox to the initscript run beside its start. Owns nothing."""

from __future__ import annotations

from typing import Protocol


class Companion(Protocol):
    """What works beside a sandbox's start and holds memory for it: the run of an initscript."""

    @property
    def link_fd(self) -> int:
        """The descriptor that goes to the function beside INIT."""

    @property
    def reserved_bytes(self) -> int:
        """What of the memory budget it holds."""

    def sandbox_ended(self) -> None:
        """The sandbox was killed: nobody needs it any more."""

    def sandbox_gone(self) -> None:
        """Handle the end of the sandbox's last process: no process has its memory mapped any more."""
