"""Ranges of objects that the initscript has fetched whole: slices of one reply, each byte of it once.

A second read of the same bytes is for the network, as a second read of an object is. Owns the replies that it has taken.
"""

from __future__ import annotations

import _thread

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from sockd_storage.reads import Read

    from sockd_storage_lib.sockd_initscript.region import Message

    Part = tuple[dict[str, str], memoryview]
    """The headers and the bytes of a response."""

UNIT = "bytes="


class Slices:
    """All objects of a process of which ranges were read."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._wholes: dict[tuple[str, str], Whole] = {}

    def part(self, read: Read, bucket: str, key: str, wanted: str, etag: str | None) -> Part | None:
        """What a request for a range is answered with; None: it is for the network.

        Args: wanted: as in the header Range; etag: the version that is asked for, None: any."""
        with self._lock:
            whole = self._wholes.setdefault((bucket, key), Whole())
        with whole.lock:
            message = whole.find(read, ["s3.GetObject", bucket, key])
            if message is None or not message.headers or etag not in (None, message.headers.get("etag")):
                return None
            span = span_of(wanted, len(message))
            if span is None or not whole.claim(span):
                return None
        headers = {**message.headers, "content-length": str(len(span))}
        headers["content-range"] = f"bytes {span.start}-{span.stop - 1}/{len(message)}"
        return headers, message.view[span.start : span.stop]


class Whole:
    """One object, or none as long as nothing was fetched. Used under its lock."""

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self._message: Message | None = None
        self._served: list[range] = []

    def find(self, read: Read, rpc: list[str]) -> Message | None:
        """The reply, if it still is what the network would give."""
        if self._message is None:
            self._message = read.prefetched(rpc)
            return self._message
        return self._message if read.may_serve(self._message) else None

    def claim(self, span: range) -> bool:
        """Whether none of these bytes was served; they are, then."""
        if any(max(span.start, each.start) < min(span.stop, each.stop) for each in self._served):
            return False
        self._served.append(span)
        return True


def span_of(wanted: str, total: int) -> range | None:
    """The bytes that a header Range names, of so many; None: it is none of a first and, perhaps, a last one that are there."""
    first, dash, last = wanted.removeprefix(UNIT).partition("-")
    if not wanted.startswith(UNIT) or not dash or not first.isdecimal() or not (last.isdecimal() or not last):
        return None
    span = range(int(first), min(int(last) + 1, total) if last else total)
    return span or None
