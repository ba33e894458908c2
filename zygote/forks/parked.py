"""What an init left open that each fork gets a new one of: sockets, deleted files, event loops of asyncio and gevent.

A connection cannot be shared: it is shut down before the snapshot, and each fork has an unconnected socket of the same kind at
its number, which clients take for a closed connection and connect again. An event loop of asyncio lets go of its selector and of
the socket pair that wakes it, and makes both anew in each fork. A deleted file, as `tempfile.TemporaryFile` gives, is copied.
"""

from __future__ import annotations

import fcntl
import gc
import os
import stat
import sys
from time import monotonic

from sockd_zygote.forks.parked_hub import ParkedHub

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any


MOST_BYTES = 1 << 20
"""The most bytes of all deleted files: they are written in each start."""


class Parked:
    """Made after the init, before threads and descriptors are looked at; `restore` in each fork."""

    def __init__(self, own: set[int]) -> None:
        """Args: own: descriptors that are not the function's."""
        self.sockets: dict[int, tuple[int, int, int]] = {}
        """Family, type with flags, and close-on-exec of the socket that each fork gets, by its number."""
        self.closed: list[str] = []
        """Connections that were shut down, in words."""
        self.files: dict[int, DeletedFile] = {}
        """By their numbers."""
        self._room = MOST_BYTES
        self._datagrams: list[tuple[int, Any]] = []
        self._loops = [ParkedLoop(loop) for loop in event_loops()]
        self._hub = ParkedHub(own)
        self.complaints = self._hub.complaints
        """Why forks cannot have what the init left, in words."""
        for fd in sorted(numbers() - own):
            status = os.fstat(fd)
            if stat.S_ISSOCK(status.st_mode):
                self._park_socket(fd)
            elif stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_size <= self._room:
                self._room -= status.st_size
                self.files[fd] = DeletedFile(fd, status.st_size)

    @property
    def holders(self) -> dict[int, int]:
        """The numbers at which each fork has `/dev/null` until `restore`, with the flags that it is opened with."""
        held = dict.fromkeys(self._hub.numbers, os.O_RDWR | os.O_CLOEXEC)
        return held | {fd: file.holder_flags for fd, file in self.files.items()}

    def restore(self) -> None:
        """Connect datagram sockets, write deleted files again, and make loops anew. Raises: OSError."""
        for file in self.files.values():
            file.restore()
        if self._datagrams:
            import _socket

            for fd, peer in self._datagrams:
                twin = _socket.socket(fileno=fd)
                twin.connect(peer)
                twin.detach()
        for loop in self._loops:
            loop.restore()
        self._hub.restore()

    def _park_socket(self, fd: int) -> None:
        """Leave out what a fork can have no new one of: `kept` names it."""
        import _socket

        with Twin(fd) as twin:
            family, kind = twin.family, twin.type
            if family not in (_socket.AF_INET, _socket.AF_INET6) or kind not in (
                _socket.SOCK_STREAM,
                _socket.SOCK_DGRAM,
            ):
                return
            if kind == _socket.SOCK_STREAM and twin.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN):
                return
            try:
                peer = twin.getpeername()
            except OSError:
                peer = None
            if peer is None and kind == _socket.SOCK_DGRAM and twin.getsockname()[1]:
                return  # it is bound: others send to it
            if peer is not None and kind == _socket.SOCK_STREAM:
                self.closed.append(f"{peer[0]}:{peer[1]}")
                try:
                    twin.shutdown(_socket.SHUT_RDWR)
                except OSError:
                    pass  # the peer has closed it already
            elif peer is not None:
                self._datagrams.append((fd, peer))
        blocks = 0 if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK == 0 else _socket.SOCK_NONBLOCK
        self.sockets[fd] = family, kind | blocks, fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


class DeletedFile:
    """A file without a name: what is in it, and how it is open."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._content = os.pread(fd, size, 0)
        self._offset = os.lseek(fd, 0, os.SEEK_CUR)
        self.flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        self.closes_on_exec = bool(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC)

    @property
    def holder_flags(self) -> int:
        """How what holds the number is opened until `restore`."""
        return os.O_RDWR | (os.O_CLOEXEC if self.closes_on_exec else 0)

    def restore(self) -> None:
        """Have a copy at the number, in place of what holds it. Raises: OSError."""
        copy = os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.write(copy, self._content)
            os.lseek(copy, self._offset, os.SEEK_SET)
            fcntl.fcntl(copy, fcntl.F_SETFL, self.flags)
            os.dup2(copy, self._fd, inheritable=not self.closes_on_exec)
        finally:
            os.close(copy)


class Twin:
    """Another socket object for a descriptor, which stays open."""

    def __init__(self, fd: int) -> None:
        import _socket

        self._socket = _socket.socket(fileno=fd)

    def __enter__(self) -> Any:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.detach()


class ParkedLoop:
    """One of asyncio's event loops, without its selector until `restore`."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        wakes = loop._ssock.fileno()
        self._keys = [key for key in loop._selector.get_map().values() if key.fd != wakes]
        self._kind = type(loop._selector)
        loop._close_self_pipe()
        loop._selector.close()
        self._parked_s = monotonic()

    def restore(self) -> None:
        """Make the selector and the pair of sockets anew. Timers have not counted the time in between."""
        loop = self._loop
        loop._selector = self._kind()
        loop._make_self_pipe()
        for key in self._keys:
            try:
                loop._selector.register(key.fileobj, key.events, key.data)
            except (OSError, ValueError):
                continue  # its owner has closed it
        frozen_s = monotonic() - self._parked_s
        for handle in loop._scheduled:
            handle._when += frozen_s
        if loop._signal_handlers:
            sys.modules["signal"].set_wakeup_fd(loop._csock.fileno())


def event_loops() -> list[Any]:
    """Return the open event loops of asyncio that use a selector."""
    module = sys.modules.get("asyncio.selector_events")
    kind = getattr(module, "BaseSelectorEventLoop", None)
    if kind is None:
        return []
    return [each for each in gc.get_objects() if isinstance(each, kind) and not each.is_closed()]


def numbers() -> set[int]:
    """Return the open descriptors of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the directory's own
        found.add(int(name))
    return found
