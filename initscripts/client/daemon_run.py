"""A function and a run as the daemon knows them: what it tells the engine of a function, and what it holds of a run."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sockd_initscripts import wire
from sockd_initscripts.limits import Budget
from sockd_initscripts.report import RunReport


@dataclass(frozen=True, slots=True)
class Definition:
    """A function as the engine knows it. Owns its descriptors once the client has it."""

    id: int
    name: str
    module_fd: int
    """Its compiled module; -1: none, its sandboxes are only listened to (a recording)."""
    env: dict[str, str]
    budget: Budget
    static_args: bytes | None = None
    authorities_fd: int = -1
    """A file with the certificates of the only authorities that its AWS services are trusted by; -1: the system's, as for one
    without a module."""

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(fd for fd in (self.module_fd, self.authorities_fd) if fd >= 0)

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)

    def message(self) -> wire.Define:
        return wire.Define(id=self.id, name=self.name, env=self.env, budget=self.budget, static_args=self.static_args)


class Ending(msgspec.Struct, frozen=True):
    """What the daemon itself needs of a run's report; the whole is kept as it came."""

    outcome: str
    """One of `sockd_initscripts.report.Outcome`, or `engine_died`."""
    status: int = 0
    message: str = ""
    region_bytes: int = 0
    fetched_bytes: int = 0


class Run:
    """One run of an initscript, during the start of one sandbox."""

    def __init__(self, number: int, link: socket.socket, cancel: Callable[[Run], None]) -> None:
        self.id = number
        self.link = link
        """The sandbox's end of the app link; ours to close once the sandbox was sent a copy."""
        self.done: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.abort: wire.Abort | None = None
        """What its script said when it called the launch off."""
        self.abort_listeners: list[Callable[[], None]] = []
        """Called once, when it does."""
        self.encoded = b""
        """The engine's report as it came; empty until the run is over, and for good if the engine died."""
        self._cancel = cancel

    @property
    def ending(self) -> Ending | None:
        """How it ended; None while it goes on."""
        return self.done.result() if self.done.done() else None

    def report(self) -> RunReport | None:
        """The engine's report; None while the run goes on, and if the engine died."""
        if not self.encoded:
            return None
        message, _ = wire.decode_to_daemon(self.encoded, 0)
        return message.report if isinstance(message, wire.Done) else None

    def close_link(self) -> None:
        """Let go of our copy of the sandbox's end. Safe to call twice."""
        self.link.close()

    def cancel(self) -> None:
        """Give it up: the engine stops it, and its report still comes. Safe at any time."""
        self.link.close()
        if not self.done.done():
            self._cancel(self)
