"""What the services of a worker are made of and did not make themselves. Owns nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import NamedTuple

from sockd.linux.bpf.port_guard import PortGuard


class ServiceParts(NamedTuple):
    """The parts of one worker."""

    guard: PortGuard
    """Keeps sandboxes from ports of the host."""
    publish_on: Collection[str]
    """Addresses of the host besides loopback, as `NetworkConfig` has them."""
    holding: Callable[[str], AbstractContextManager[None]]
    """Keeps code of a digest on disk: a program may outlive all records of its version."""
