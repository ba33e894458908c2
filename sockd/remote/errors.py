"""What can go wrong between a client and its functions."""

from __future__ import annotations

from collections.abc import Sequence


class RemoteError(Exception):
    """A call that did not give a result: the function raised, or its sandbox came to an end.

    `type` is the name of the exception there, or AWS's for what is not the function's own ("Sandbox.Timedout")."""

    def __init__(self, type: str, message: str, stack: Sequence[str] = ()) -> None:
        super().__init__(type, message, stack)
        self.type = type
        self.message = message
        self.traceback = "".join(stack)
        """The frames there, as Python prints them; empty if there were none."""

    def __str__(self) -> str:
        told = f"{self.type}: {self.message}"
        if not self.traceback:
            return told
        return f"{told}\n\nIn the sandbox:\nTraceback (most recent call last):\n{self.traceback}{told}"


class NoWorker(ConnectionError):
    """Nobody answers where the worker should be."""


class DeployFailed(Exception):
    """The worker refused a function, or this one may not deploy; the message says why."""
