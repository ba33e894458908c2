"""Listening sockets, bound before anything is served: TCP by `HOST:PORT`, and Unix sockets of a given mode.

Owns nothing: the caller closes what it is given.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from sockd.base.errors import BadConfig
from sockd.linux.network import loopback
from sockd.linux.network.loopback import LOOPBACKS

_UNACKNOWLEDGED_MS = 30_000
_HIGH = 16_000
"""A descriptor number above those of connections, within the table that the worker has from its start."""


def parse_listen(listen: str) -> tuple[str, int]:
    """`127.0.0.1:5000`, `localhost:5000`, `[::1]:5000`, `0.0.0.0:0` as host and port.

    Raises: BadConfig."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadConfig(f"listen: {listen!r} is not HOST:PORT, for example 127.0.0.1:5000 or [::1]:5000")
    return host.removeprefix("[").removesuffix("]"), int(port)


_BOTH_LOOPBACKS = {
    "localhost": LOOPBACKS,
    "127.0.0.1": LOOPBACKS,
    "::1": LOOPBACKS[::-1],
    "0.0.0.0": ("0.0.0.0", "::1"),
    "::": ("::", "127.0.0.1"),
}
"""What is bound for these hosts. Clients that say `localhost` reach one of the two, and no other program is to have the other."""
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def bind_tcp(listen: str) -> list[socket.socket]:
    """One bound socket per address of the host, all on one port; for either loopback, both.

    Raises: BadConfig: the host has no address; OSError: one of them cannot be bound; then none is."""
    host, port = parse_listen(listen)
    return bind_more(addresses_of(host), port, listen, False)


def bind_more(addresses: Sequence[str], port: int, listen: str, has_some: bool) -> list[socket.socket]:
    """Return bound sockets for some addresses of `listen`.

    Args: has_some: whether others of its addresses are bound already, so that a loopback that the host lacks is no error.
    Raises: OSError: one of them cannot be bound; then none is."""
    try:
        return loopback.bind(addresses, port, _prepare, may_lack_all=has_some)
    except OSError as error:
        error.add_note(f"listen: {listen}")
        if error.errno == errno.EADDRINUSE:
            error.add_note(
                f"another program would answer this worker's clients there: end it (ss -tlnp 'sport = :{port}' shows it)"
            )
        raise


def url_of(listen: str, port: int) -> str:
    """A URL at which only this worker is reached: an address that it holds, never a name that may lead elsewhere."""
    host, _ = parse_listen(listen)
    host = _WILDCARDS.get(host) or ("127.0.0.1" if host == "localhost" else loopback.show(host))
    return f"http://{host}:{port}"


def addresses_of(host: str) -> Sequence[str]:
    """The addresses of a host. `localhost` is not looked up: an entry in /etc/hosts may lack one of the two."""
    if host in _BOTH_LOOPBACKS:
        return _BOTH_LOOPBACKS[host]
    try:
        infos = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BadConfig(f"listen: {host!r} has no address: {error.strerror}") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in infos))


def adopt_tcp(sock: socket.socket) -> socket.socket:
    """Return a listening socket that another process has bound, with the options of ours."""
    _prepare(sock)
    return sock


def closed_first(sock: socket.socket) -> socket.socket:
    """Return a listening socket at another descriptor, which the kernel closes before the connections' if it kills the process.

    The kernel closes the descriptors of a killed process from the highest number down (task_work_add makes a stack). With the
    listening socket last, a client whose connection was cut would be let in once more, and that connection be cut as well:
    a proxy counts this as a request that may have run. Closed first, it refuses the client, whose proxy goes elsewhere."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with sock:
        return socket.socket(fileno=fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, min(_HIGH, soft // 2)))


def _prepare(sock: socket.socket) -> None:
    # Inherited by accepted sockets: a peer that stops reading or vanishes loses its connection in this time, which
    # no timer of the server does for an answer that is already written (tcp(7); it covers zero windows as well).
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited, too: an answer is one write
    # Who says nothing is left to the kernel for a second: it knows only a request for a connection until then, and a
    # flood of them costs us nothing. Who speaks at once, as all clients do, notices nothing.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)


def bind_unix(
    path: Path, mode: int = 0o600, gid: int | None = None, *, kind: socket.SocketKind = socket.SOCK_STREAM
) -> socket.socket:
    """A bound Unix socket of this group, mode 0600 until it has this one. What a dead owner left at `path` is replaced.

    The caller makes sure that no living owner is there (the state directory's lock does)."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_mode):
                raise BadConfig(f"{path.name} in the state directory is not a socket")
            os.unlink(path.name, dir_fd=directory)
        sock = socket.socket(socket.AF_UNIX, kind)
        try:
            # Linux creates the file with the mode of the socket's own inode, so there is no moment of 0755 (unix_bind).
            os.fchmod(sock.fileno(), 0o600)
            sock.bind(short_path(directory, path.name))
            if gid is not None:
                os.chown(path.name, -1, gid, dir_fd=directory)
            os.chmod(path.name, mode, dir_fd=directory)  # nothing comes before `listen`
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(directory)


def own_path(path: Path, mode: int, gid: int | None) -> None:
    """Give the path of a bound Unix socket this mode and group. Raises: OSError."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chown(path.name, -1, os.getegid() if gid is None else gid, dir_fd=directory)
        os.chmod(path.name, mode, dir_fd=directory)
    finally:
        os.close(directory)


def short_path(directory_fd: int, name: str) -> str:
    """A path to `name` that fits into sun_path (108 bytes) however long the directory's own path is."""
    return f"/proc/self/fd/{directory_fd}/{name}"
