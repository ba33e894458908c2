"""The takeover: what a worker that starts does to follow the one that runs (`handover` is the other side).

Owns the connection to the worker before, and its pidfd, until this one serves. It waits without an event loop, because nothing
of the worker is there yet; SIGTERM ends the process at once.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from pathlib import Path

from sockd.base.errors import BadConfig
from sockd.http.server.listening.inherited import Inherited
from sockd.linux.descriptor_passing import receive
from sockd.worker.life.handover import MOST_BYTES, MOST_SOCKETS, REFUSED, RELEASED, SERVES, TAKE, connect, peer_pid

_log = logging.getLogger(__name__)


class Predecessor:
    """The worker before, as the one that takes over sees it. `close` it."""

    def __init__(self, link: socket.socket) -> None:
        """Args: link: connected to the worker; owned from now on. Raises: OSError: its process has ended."""
        self._link = link
        self.pid = peer_pid(link)
        self._pidfd = os.pidfd_open(self.pid)

    def take_sockets(self) -> Inherited:
        """Have the worker hand over its listening sockets, and return them; none, if it was lost meanwhile.

        Raises: BadConfig: the worker refuses, because it ends already."""
        try:
            self._link.send(TAKE)
            names, descriptors = receive(self._link, MOST_BYTES, MOST_SOCKETS)
        except OSError as error:
            _log.warning("the worker with pid %d was lost before it handed over: %s", self.pid, error.strerror)
            return Inherited()
        if names == REFUSED:
            raise BadConfig(
                f"the sockd with pid {self.pid} ends, or hands over to another; try again when it has ended"
            )
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        return Inherited(zip(names.decode().split(":"), sockets, strict=False))

    def wait_released(self) -> None:
        """Wait until the worker has nothing of the state directory any more, or its process has ended."""
        try:
            if self._link.recv(MOST_BYTES) == RELEASED:
                return
        except OSError as error:
            _log.warning("the worker with pid %d was lost while it handed over: %s", self.pid, error.strerror)
        # Its lock is released when the kernel has closed all of its descriptors, of which the connection may be the first.
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        poller.poll()

    def tell_serving(self) -> None:
        """Let the worker before end: this one serves."""
        try:
            self._link.send(SERVES)
        except OSError:
            _log.info("the worker with pid %d has ended already", self.pid)
        self.close()

    def close(self) -> None:
        """Close the connection to the worker, which serves on or starts again unless it was notified that this one
        serves."""
        self._link.close()
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)


def find(state_dir: Path) -> Predecessor | None:
    """Connect to the worker that runs on a state directory; None: there is none that hands over."""
    try:
        return Predecessor(connect(state_dir))
    except OSError:
        return None
