"""The process that holds the descriptors of a FUSE connection, and lends copies of them.

    python -m sockd.images.agent_keeper.holding_process SOCKET_FD PARENT_PID DEVICE_FD...

It answers each message with the descriptors. It never touches a file of the connection, so it ends at once when the daemon ends.
"""

from __future__ import annotations

import os
import socket
import sys

from sockd.linux.processes import launching


def main(socket_fd: int, parent: int, devices: list[int]) -> None:
    """Lend until the daemon ends, or closes the socket."""
    launching.die_with_parent()
    if os.getppid() != parent:
        return  # it ended before
    with socket.socket(fileno=socket_fd) as wire:
        while wire.recv(1):
            socket.send_fds(wire, [b"\n"], devices)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [int(each) for each in sys.argv[3:]])
