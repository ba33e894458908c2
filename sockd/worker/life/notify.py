"""Telling systemd how we are (sd_notify(3)): one datagram; nothing without systemd."""

from __future__ import annotations

import logging
import os
import socket

READY, STOPPING = "READY=1", "STOPPING=1"

_log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send READY or STOPPING to the process that started the worker with Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.send(state.encode())
        except OSError as error:  # inherited from a parent that started us in a place where it leads nowhere
            if state == STOPPING:  # `sockd up --detach` has long returned
                return
            _log.warning("$NOTIFY_SOCKET does not answer: %s", error.strerror)
