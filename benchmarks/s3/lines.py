"""Lines and blocks of a body that has a coding of its own."""

from __future__ import annotations

import re

from benchmarks.s3.wire import BadRequest, Source, Truncated

LINE_LIMIT_BYTES = 4096
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Lines:
    """Lines and blocks of a source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._buffer = b""

    def line(self) -> bytes:
        """The next line without its end. Raises BadRequest."""
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > LINE_LIMIT_BYTES:
                raise BadRequest("a line is too long")
            self._fill(LINE_LIMIT_BYTES)
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def read(self, limit: int) -> bytes:
        """At least one byte. Raises BadRequest at the end."""
        if not self._buffer:
            self._fill(limit)
        data, self._buffer = self._buffer[:limit], self._buffer[limit:]
        return data

    def _fill(self, limit: int) -> None:
        more = self._source.read(limit)
        if not more:
            raise Truncated("in the body")
        self._buffer += more


def chunk_size(line: bytes) -> int:
    """The number at a chunk's beginning; extensions after it are not looked at. Raises BadRequest."""
    digits = line.partition(b";")[0].strip()
    if not _SIZE.fullmatch(digits):
        raise BadRequest("the size of a chunk")
    return int(digits, 16)
