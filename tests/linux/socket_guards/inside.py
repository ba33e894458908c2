"""A process in a cgroup, which makes sockets as a test asks it to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from sockd.linux.cgroups.tree import Cgroup

MOST = 40


RELEASE = tuple(map(int, os.uname().release.split(".")[:2]))


REFUSAL = "EMFILE" if RELEASE >= (5, 18) else "EPERM"
"""What socket(2) says at the limit."""


INSIDE = """
import array, errno, json, os, socket, sys
kept = []
for line in sys.stdin:
    try:
        answer = eval(line)
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(json.dumps(answer), flush=True)
"""


BIND = "[kept.append(socket.socket(socket.{family}, socket.{kind})), kept[-1].bind(({host!r}, {port}))] and 'ok'"


CONNECT = r"""
def connect(kept, keep):
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    kept += {"server": [server], "listener": [listener], "nothing": []}[keep]
    for each in (server, client, listener):  # the server first: TIME_WAIT is at the listener's port
        each in kept or each.close()
    return "ok"
"""
"""Leaves of a connection of its own with itself what is to be kept."""


class Inside:
    """A process in a cgroup, which evaluates the expressions that it gets."""

    def __init__(self, cgroup: Cgroup) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", INSIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for fd in cgroup.procs_fds:
            os.write(fd, str(self._process.pid).encode())

    def tell(self, expression: str) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def sockets(self, count: int) -> Any:
        return self.tell(f"[kept.append(socket.socket()) for _ in range({count})] and 'ok'")

    def close(self) -> None:
        with self._process as process:
            assert process.stdin
            process.stdin.close()


Start = Callable[[Cgroup], Inside]


Leaf = Callable[[str], Cgroup]
