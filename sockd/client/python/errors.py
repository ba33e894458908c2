"""What can go wrong between a client and its functions."""

from __future__ import annotations

from collections.abc import Sequence

from sockd.base.printable import printable


class RemoteError(Exception):
    """A call that did not give a result: the function raised, or its sandbox came to an end.

    `type` is the name of the exception there, or AWS's for what is not the function's own ("Sandbox.Timedout")."""

    def __init__(
        self, type: str, message: str, stack: Sequence[str] = (), *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(type, message, stack)
        self.type = type
        self.message = message
        self.retry_after_s = retry_after_s
        """When another try may succeed, as nothing ran; None: the function ran, or another try does not help."""
        self.traceback = "".join(stack)
        """The frames there, as Python prints them; empty if there were none."""

    @property
    def is_late_start(self) -> bool:
        """Whether the sandbox was not ready in time: the function was not called."""
        return self.type == "Sandbox.Timedout" and self.message.endswith("(init_timeout_s)")

    def __str__(self) -> str:
        text = f"{self.type}: {self.message}"
        if self.traceback:
            text = f"{text}\n\nIn the sandbox:\nTraceback (most recent call last):\n{self.traceback}{text}"
        return printable(text)  # Python prints it on a terminal, and a function chose it


class UnverifiedAnswer(RemoteError):
    """An answer that does not prove to come from the worker; it was not unpickled."""


class NoWorker(ConnectionError):
    """Nothing answers where the worker should be, or the connection was lost before the answer."""

    retry_after_s: float | None = 0.0
    """As of `RemoteError`; None: there can be no worker at this address."""


class DeployFailed(Exception):
    """The worker refused a function, or this one may not deploy; the message says why."""


class NameTaken(DeployFailed):
    """The worker's function of this name was deployed from another source."""


class OtherCode(DeployFailed):
    """Other code is deployed under the function's name now; the call was not run."""
