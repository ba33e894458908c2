"""Descriptors over Unix sockets (unix(7), SCM_RIGHTS), closed on exec from the start, as `socket.recv_fds` does not."""

from __future__ import annotations

import array
import os
import socket


def receive(wire: socket.socket, most_bytes: int, most_descriptors: int) -> tuple[bytes, list[int]]:
    """One read with its descriptors, which are the caller's. Raises: OSError; ValueError for a message that was cut."""
    rights = array.array("i")
    size = socket.CMSG_SPACE(most_descriptors * rights.itemsize)
    data, ancillary, flags, _ = wire.recvmsg(most_bytes, size, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            rights.frombytes(content[: len(content) - len(content) % rights.itemsize])
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        for each in rights:
            os.close(each)
        raise ValueError("a message was cut")
    return data, rights.tolist()
