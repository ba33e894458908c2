"""The process that makes network namespaces: entering a Zygote's user namespace takes a process with one thread and cannot be
taken back, so this one, which is exec'd for it, forks a child for each request.

    python -m sockd.isolation.farm.namespace_process <control fd>

It never runs user code, and dies with the daemon.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import Any

from sockd.linux import syscalls
from sockd.linux.network import network_namespaces
from sockd.linux.processes import launching
from sockd_zygote import linux, protocol

LEAST_PORT = "ipv4/ip_unprivileged_port_start"
"""No other process is there, so ports below 1024 need no capability, as in docker's containers: web servers listen on 80."""


def main(control_fd: str) -> None:
    launching.die_with_parent()
    control = socket.socket(fileno=int(control_fd))
    buffer = bytearray(protocol.CONTROL_MAX_BYTES)
    while True:
        data, fds = linux.receive(control, buffer, protocol.CONTROL_MAX_FDS)
        if not data:
            return
        child = os.fork()  # noqa: TID251  SAFETY: this process is single-threaded and was exec'd for this
        if child == 0:
            answer(control, protocol.decode_control(data), fds[0])
            os._exit(0)
        for fd in fds:
            os.close(fd)
        if os.waitpid(child, 0)[1]:
            return  # the parent, which waits for its answer, sees the end


def answer(control: socket.socket, message: dict[str, Any], zygote: int) -> None:
    """In a child: enter the user namespace of a Zygote, a pidfd, and make network namespaces that it owns."""
    try:
        syscalls.setns(zygote, syscalls.CLONE_NEWUSER)
        made = tuple(new_namespace() for _ in range(message["count"]))
    except OSError as error:
        refusal = {"op": "refused", "id": message["id"], "error": str(error)}
        linux.send(control, protocol.encode_control(refusal))
        return
    linux.send(control, protocol.encode_control({"op": "made", "id": message["id"]}), made)


def new_namespace() -> int:
    """The descriptor of one with a loopback; the child stays in it, as it may not go back to the host's. Raises: OSError."""
    syscalls.unshare(syscalls.CLONE_NEWNET)
    network_namespaces.bring_loopback_up()
    with contextlib.suppress(OSError):  # where /proc/sys is read-only: then ports from 1024 on
        network_namespaces.set_sysctl(LEAST_PORT, 0)
    return network_namespaces.current()


if __name__ == "__main__":
    main(*sys.argv[1:])
