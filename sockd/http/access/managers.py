"""The local processes that may manage the worker: those of root and of the members of a group.

Owns nothing. The modes of the sockets express the same rule. The credentials of the connecting process (SO_PEERCRED,
SO_PEERGROUPS) are checked as well, in case a socket's mode was changed or its descriptor was passed on.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct

from sockd.base.config import ManagementConfig
from sockd.base.errors import BadConfig, NotAManager
from sockd.http.server.connection import Application, Connection
from sockd.http.server.exchange import Exchange
from sockd.http.server.messages.head import Head
from sockd.http.server.refused import Refused

_SO_PEERGROUPS = 59
"""The supplementary groups that the peer had when it connected (Linux 4.13); `socket` does not name it."""
_MOST_GROUPS = 65536
"""NGROUPS_MAX."""
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


class Managers:
    """Root, and perhaps a group."""

    def __init__(self, group: str = "", gid: int | None = None) -> None:
        self.group = group
        self.gid = gid

    @classmethod
    def of(cls, config: ManagementConfig) -> Managers:
        """What a configuration says. Raises: BadConfig, for a group that this host does not have."""
        if not config.group:
            return cls()
        try:
            return cls(config.group, grp.getgrnam(config.group).gr_gid)
        except KeyError:
            raise BadConfig(
                f"management.group = {config.group!r}: this host has no such group; groupadd --system {config.group}"
            ) from None

    def include(self, sock: socket.socket) -> bool:
        """Whether the connecting process is a manager; False for sockets other than Unix ones."""
        if sock.family != socket.AF_UNIX:
            return False
        _, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid == 0:
            return True
        return self.gid is not None and (gid == self.gid or self.gid in _groups(sock))

    def include_uid(self, uid: int) -> bool:
        """Whether a user is a manager, by the host's user database, which may be slow: for threads."""
        if uid == 0:
            return True
        if self.gid is None:
            return False
        try:
            user = pwd.getpwuid(uid)
        except KeyError:
            return False
        return self.gid in os.getgrouplist(user.pw_name, user.pw_gid)


def _groups(sock: socket.socket) -> tuple[int, ...]:
    size = 4 * 64
    while True:
        try:
            found = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, size)
        except OSError:
            # ERANGE: there are more.
            if size >= 4 * _MOST_GROUPS:
                return ()
            size *= 32
            continue
        return struct.unpack(f"{len(found) // 4}I", found)


class ManagersOnly:
    """An application of a Unix socket that serves only managers."""

    def __init__(self, app: Application, managers: Managers) -> None:
        self._app = app
        self._managers = managers

    def open(self, connection: Connection, head: Head) -> Exchange:
        sock = connection.transport.get_extra_info("socket")
        if self._managers.include(sock):
            return self._app.open(connection, head)
        return Refused(connection, head, NotAManager(self._managers.group))
