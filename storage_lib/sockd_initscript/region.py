"""What the engine received for us: segments of shared memory that we may read, and the messages that lie in them.

A segment is a file without a name. Its descriptor can only be read from, and neither mapping it writable nor opening it
again changes that (the file belongs to the engine's user). A large object has a segment of its own, small ones share one.
"""

from __future__ import annotations

import _thread
import os

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    import mmap


class Segment:
    """Owns one descriptor; at most one at a time, because a mapping keeps its own. All threads may use it."""

    __slots__ = ("_fd", "_lock", "_map", "_pinned", "size")

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._lock = _thread.allocate_lock()
        self._map: mmap.mmap | None = None
        self._pinned = False
        self.size = size

    def view(self, offset: int, length: int) -> memoryview:
        """Its bytes, without copying. Raises: OSError; ValueError after `close`, unless it was mapped before."""
        with self._lock:
            if self._map is None:
                if self._fd < 0:
                    raise ValueError("the link to the initscript is closed")
                import mmap  # only now: it is a shared object of its own in most interpreters

                self._map = mmap.mmap(self._fd, self.size, prot=mmap.PROT_READ)
                self._close()
        return memoryview(self._map)[offset : offset + length]

    def copy(self, out: int, offset: int, length: int) -> None:
        """Append bytes of it to the file behind `out`. Raises: as `view`.

        In the kernel, if it is not mapped yet: from tmpfs to tmpfs sendfile(2) needs 40 ms for 102 MB and write(2) from
        a mapping 47, page faults included (measured); copy_file_range(2) refuses to cross file systems."""
        with self._lock:
            source = os.dup(self._fd) if self._fd >= 0 else -1  # the other may be closed while we copy
        if source < 0:
            view = self.view(offset, length) if length else memoryview(b"")
            while view:
                view = view[os.write(out, view) :]
            return
        end = offset + length
        try:
            while offset < end:
                sent = os.sendfile(out, source, offset, end - offset)
                if sent == 0:
                    raise OSError(5, "sendfile: the segment is shorter than it was said to be")
                offset += sent
        finally:
            os.close(source)

    def link_target(self) -> str | None:
        """A path that leads to the whole segment while this process lives, if /proc and its mode allow that."""
        with self._lock:
            if self._fd < 0:
                return None
            try:
                # By the number that /proc knows us by: without a /proc of our own it is not getpid().
                path = f"/proc/{os.readlink('/proc/self')}/fd/{self._fd}"
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return None
            self._pinned = True
            return path

    def close(self) -> None:
        """Close the descriptor; mappings stay, and so does what a link leads to."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if not self._pinned:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


class Message:
    """One message of the script: bytes in a segment, and what they are the reply to."""

    __slots__ = ("_length", "_offset", "_segment", "headers", "number", "rpc", "status")

    def __init__(
        self,
        segment: Segment,
        offset: int,
        length: int,
        number: int,
        rpc: list[str] | None,
        status: int,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._segment = segment
        self._offset = offset
        self._length = length
        self.number = number
        self.rpc = rpc
        """The engine's own word for the RPC whose whole reply this is: `["s3.GetObject", bucket, key]`; None: made up."""
        self.status = status
        """The status of the reply, in its protocol's own numbers."""
        self.headers = headers or {}
        """The headers of a reply of S3, names in lower case."""

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> memoryview:
        """Its bytes, read-only and not copied. Raises: OSError, ValueError as `Segment.view`."""
        if self._length == 0:
            return memoryview(b"")
        return self._segment.view(self._offset, self._length)

    def save(self, path: str, *, link: bool = False) -> None:
        """Leave a file at `path`, instead of what was there; a child process can open it.

        Args:
            link: a symbolic link to shared memory, not a copy, where that is possible: when the message has a segment of
                its own. It can be read and mapped while this process lives, never written.
        Raises: OSError; then nothing is at `path` that was not there."""
        whole = self._offset == 0 and self._length == self._segment.size
        target = self._segment.link_target() if link and whole else None
        with Replacement(path) as temporary:
            if target is not None:
                os.symlink(target, temporary)
                return
            out = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                self._segment.copy(out, self._offset, self._length)
            finally:
                os.close(out)


class Replacement:
    """`with Replacement(path) as temporary:` make a file there; it becomes `path` if all went well, and goes if not."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._temporary = f"{os.fspath(path)}.{os.urandom(4).hex()}"

    def __enter__(self) -> str:
        return self._temporary

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            os.rename(self._temporary, self._path)
            return
        try:
            os.unlink(self._temporary)
        except FileNotFoundError:
            return
