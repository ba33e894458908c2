"""What a sandbox becomes: a version of a function, as the sandbox layer needs to know it.

Owns the code's detached mount. Made once per deployed version, shared by all its sandboxes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from sockd.base.errors import SockdError
from sockd.isolation.roots.image_base import ImageBase
from sockd.linux import mounts
from sockd.linux.bpf.socket_counts import NO_FUNCTION
from sockd.linux.processes.task_shares import TaskShare

Network = Literal["host", "none", "private"]
"""The host's, none at all, or one of its own."""
OWN = ""
"""The interpreter that runs the worker itself."""


class Lineage(NamedTuple):
    """What all forks of one root Zygote have in common; a Zygote serves functions of its lineage only."""

    network: Network = "host"
    interpreter: str = OWN
    """Id of the interpreter (`sockd.isolation.roots.interpreter`)."""


HOST_LINEAGE = Lineage()
DECIDE_STARTS = ("init", "limits", "init_timeout_s", "lineage", "writable_root")
"""What of a program, besides its code, packages and image, decides whether a start of it succeeds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use."""

    memory_bytes: int
    pids: int
    cpus: float
    tmp_bytes: int
    tmp_inodes: int
    network: Network = "host"
    sockets: int = 1024

    def same_tmp(self, other: Limits) -> bool:
        """Whether a /tmp made for one is right for the other."""
        return (self.tmp_bytes, self.tmp_inodes) == (other.tmp_bytes, other.tmp_inodes)


class ImageInUse(Protocol):
    """The image that a program runs in. Made for one program, which closes it."""

    async def mounted(self, within_s: float) -> ImageBase:
        """The image, mounted until `close`. Raises: ImageNotReady: that takes longer; SockdError, OSError."""

    def used(self) -> None:
        """A request may read it from now on, or a start. Cheap."""

    def failure_since(self, begun_ns: int) -> SockdError | None:
        """Why reads of the image have failed, if one has since then (CLOCK_MONOTONIC)."""

    def close(self) -> None:
        """Let go of it; sandboxes that run hold it themselves. Safe to call twice."""


class Program:
    """Code, the INIT message that tells a sandbox what it is, and its limits in bytes and seconds."""

    def __init__(
        self,
        code: Path | None,
        init: bytes,
        limits: Limits,
        *,
        init_timeout_s: float,
        timeout_s: float,
        log_bytes: int,
        is_app: bool | None = False,
        name: str = "",
        json_log_level: str = "",
        image: ImageInUse | None = None,
        interpreter: str = OWN,
        writable_root: bool = False,
    ) -> None:
        """Args:
        code: None: it has none.
        image: the root of its sandboxes; None: the host's software.
        is_app: whether the handler is a web app; None: its first sandbox will tell.
        writable_root: whether each sandbox may change the image's files, for itself."""
        self.code = code
        self._code_fd = -1
        self.init = init
        self.limits = limits
        self.init_timeout_s = init_timeout_s
        self.timeout_s = timeout_s
        self.log_bytes = log_bytes
        self.is_app = is_app
        self.name = name
        """The name of the function; empty if its output is not followed."""
        self.json_log_level = json_log_level
        """The level of the daemon's own records in a log of JSON; empty if the log is text."""
        self.image = image
        self.base: ImageBase | None = None
        """The image, mounted by the caller that starts a sandbox (`mount_image`)."""
        self.writable_root = writable_root
        self.lineage = Lineage(limits.network, interpreter)
        self.policy: object | None = None
        """The rules of its private network (`sockd.isolation.networks.policy.Policy`); its function sets them before the first
        start."""
        self.link_fd: int | None = None
        """A descriptor that is sent with INIT, owned by the creator of the program."""
        self.socket_account = NO_FUNCTION
        """In which the sockets of all sandboxes of its function are counted; its function sets it."""
        self.wants_port = False
        """Whether each of its sandboxes is granted a port of the host, which its INIT has as `port`."""
        self.is_trial = False
        """Whether no client waits for its only request, which has the deadline of an init: the time for which it waits for
        processors that others use does not count (`sandbox.init_ceiling`)."""
        self.tasks: TaskShare | None = None
        """The processes and threads of all sandboxes of its function; its function sets it. None: it has no function."""

    def starts_as(self, other: Program) -> bool:
        """Whether starts of this program and of another one with the same code, packages and image have the same outcome."""
        return all(getattr(self, name) == getattr(other, name) for name in DECIDE_STARTS)

    async def mount_image(self) -> None:
        """Have the image mounted, if it has one. Raises: ImageNotReady; SockdError, OSError."""
        if self.image is not None:
            self.base = await self.image.mounted(self.init_timeout_s)

    @property
    def code_fd(self) -> int:
        """The sealed, detached mount of the code, made when it is first needed. Raises: OSError."""
        if self._code_fd < 0:
            self._code_fd = mounts.sealed_copy(str(self.code))
        return self._code_fd

    def close(self) -> None:
        """Let go of the mounts; sandboxes that have copies keep them. Safe to call twice."""
        self.base = None
        if self.image is not None:
            self.image.close()
        fd, self._code_fd = self._code_fd, -1
        if fd >= 0:
            os.close(fd)
