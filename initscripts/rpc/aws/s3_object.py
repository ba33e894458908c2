"""One object read whole: a first range, and as soon as its head tells the size, the rest as parallel ranges.

    GET bytes=0-N ──head──▶ allocate all of it ──▶ GET bytes=a-b, If-Match ──▶ straight into its slice
         │                                    ├──▶ ...
         └─▶ straight into the first slice    └──▶ ...

Never a mix of versions: each part names the first reply's ETag, and its own reply is checked, too. An object that fits
the first range takes one request. Owns the buffer until the read is whole, and the requests for its parts.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from sockd_initscripts.region import Region
from sockd_initscripts.rpc.aws.ranges import ContentRange, Range, parse_content_range, split
from sockd_initscripts.rpc.base import Reply, ReplyBuffer, RpcFailed, RpcTiming, protocol_error
from sockd_initscripts.rpc.http1.http import BodySink
from sockd_initscripts.rpc.http1.http_client import HttpClient
from sockd_initscripts.rpc.http1.http_head import Head
from sockd_initscripts.rpc.limits import RpcLimits

HeadMaker = Callable[[dict[str, str]], bytes]
"""Signs a GET of the object with these headers."""


class ObjectChanged(RpcFailed):
    """Another version has taken the object's place while it was read."""

    def __init__(self, detail: str) -> None:
        super().__init__(errno.EPROTO, "changed", detail)


class Unavailable(RpcFailed):
    """The server could not give a part now."""


class _Indivisible(Exception):
    """The server cannot tell the size, or not which version this is: ask for all of it at once."""


class ObjectRead:
    """One attempt."""

    def __init__(self, client: HttpClient, make_head: HeadMaker, region: Region, limits: RpcLimits) -> None:
        self._client = client
        self._make_head = make_head
        self._region = region
        self._limits = limits
        self._reply_buffer = ReplyBuffer(region)
        self._first = Range(0, limits.first_range_bytes)
        self._etag = ""
        self._headers: dict[str, str] = {}
        self._total = 0
        self._tasks: list[asyncio.Task[RpcTiming]] = []

    async def run(self, timing: RpcTiming) -> Reply:
        """The reply, with status 200 for a whole object or the server's error with its body.

        Raises: ObjectChanged, RpcFailed; what was allocated has been given back then."""
        try:
            status = await self._read_first(timing)
            for task in self._tasks:
                part = await task
                timing.bytes += part.bytes
                timing.done_ns = max(timing.done_ns, part.done_ns)
        except BaseException:
            # No part may write to memory that is given back.
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._reply_buffer.free()
            raise
        return Reply(status, self._reply_buffer.buffer, self._etag, self._headers_of_whole())

    def _headers_of_whole(self) -> dict[str, str]:
        """The headers that one request for all of it would have had."""
        headers = dict(self._headers)
        for name in ("content-range", "transfer-encoding"):
            headers.pop(name, None)
        buffer = self._reply_buffer.buffer
        headers["content-length"] = str(buffer.length if buffer is not None else 0)
        return headers

    async def _read_first(self, timing: RpcTiming) -> int:
        try:
            head = await self._client.fetch(self._make_head({"range": self._first.header}), self, timing, hedged=True)
        except _Indivisible:
            head = None
        if head is None or head.status == 416:  # the range of an object without bytes
            self._reply_buffer.free()
            sink = BodySink(self._region)
            self._reply_buffer = sink.reply_buffer
            head = await self._client.fetch(self._make_head({}), sink, timing, hedged=True)
        timing.parts = 1 + len(self._tasks)
        self._etag, self._headers = head.headers.get("etag", ""), head.headers
        return 200 if head.status == 206 else head.status

    # -- the sink of the first reply

    def place(self, head: Head, length: int) -> memoryview:
        if head.status != 206:
            return self._reply_buffer.allocate(length)
        content = parse_content_range(head.headers.get("content-range", ""))
        if content is None:
            raise _Indivisible
        self._total = content.total
        expected = Range(0, min(self._first.end, self._total))
        if content.range != expected or length != expected.end:
            raise protocol_error(f"{length} bytes of {content} where {expected.header} was asked for")
        if length == self._total:
            return self._reply_buffer.allocate(length)
        self._etag = head.headers.get("etag", "")
        if not self._etag.startswith('"'):  # none, or a weak one, which never matches
            raise _Indivisible
        whole = self._reply_buffer.allocate(self._total)
        loop = asyncio.get_running_loop()
        for part in split(length, self._total, parts=self._limits.parts, part_bytes=self._limits.part_bytes):
            sink = _PartSink(whole[part.start : part.end], ContentRange(part, self._total), self._etag)
            self._tasks.append(loop.create_task(self._read_part(part, sink)))
        return whole[:length]

    def collect(self, head: Head) -> ReplyBuffer:
        if head.status == 206:
            raise _Indivisible
        return self._reply_buffer

    async def _read_part(self, part: Range, sink: _PartSink) -> RpcTiming:
        timing = RpcTiming()
        request = self._make_head({"range": part.header, "if-match": self._etag})
        head = await self._client.fetch(request, sink, timing, hedged=True)
        if not sink.placed:  # a reply without a body
            sink.check(head)
            raise protocol_error(f"an empty reply where {part.header} was asked for")
        return timing


class _PartSink:
    """Takes one part into its slice, and nothing else."""

    def __init__(self, view: memoryview, expected: ContentRange, etag: str) -> None:
        self.placed = False
        self._view = view
        self._expected = expected
        self._etag = etag

    def check(self, head: Head) -> None:
        """Raises: RpcFailed if it is not the reply to this part's request."""
        range_text = self._expected.range.header
        if head.status in (404, 412, 416):
            raise ObjectChanged(f"status {head.status} for {range_text} of a version that was there before")
        if head.status != 206:
            kind = Unavailable if head.status >= 500 else RpcFailed
            raise kind(errno.EPROTO, "rejected", f"status {head.status} for {range_text}")
        if head.headers.get("etag", self._etag) != self._etag:
            raise ObjectChanged(f"{range_text} is of another version than the first")
        if parse_content_range(head.headers.get("content-range", "")) != self._expected:
            raise protocol_error(f"{head.headers.get('content-range')!r} where {range_text} was asked for")

    def place(self, head: Head, length: int) -> memoryview:
        self.check(head)
        if length != len(self._view):
            raise protocol_error(f"{length} bytes where {len(self._view)} were asked for")
        self.placed = True
        return self._view

    def collect(self, head: Head) -> ReplyBuffer:
        self.check(head)
        raise protocol_error("a part without a length")
