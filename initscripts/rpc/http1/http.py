"""`http://` and `https://`: requests as the guest words them.

The method is "GET /path", then header lines if any; the body is sent raw. Redirects are the guest's to follow, and a body
is received as it is stored (`accept-encoding: identity` is asked for). Owns what a guest may say in a request: framing
and the connection are ours, or one function's request could run into another's reply.
"""

from __future__ import annotations

import re
import socket
from typing import Literal

from sockd_initscripts.region import Region
from sockd_initscripts.rpc.base import Body, Connection, Reply, ReplyBuffer, RpcTiming, malformed
from sockd_initscripts.rpc.http1.http_client import HttpClient
from sockd_initscripts.rpc.http1.http_head import Head

_REQUEST_LINE = re.compile(r"([A-Z]{1,20}) (/[\x21-\x7e]*)")
_HEADER = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_REPEATABLE = frozenset(("GET", "HEAD", "PUT", "DELETE", "OPTIONS"))
_OURS = frozenset(
    ("connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
COMMON_FIELDS = "user-agent: sockd-initscript\r\naccept-encoding: identity\r\n"


class BodySink:
    """Takes a body whole, as long as it is."""

    def __init__(self, region: Region) -> None:
        self.reply_buffer = ReplyBuffer(region)

    def place(self, head: Head, length: int) -> memoryview:
        return self.reply_buffer.allocate(length)

    def collect(self, head: Head) -> ReplyBuffer:
        return self.reply_buffer


class HttpConnection(Connection):
    """An origin."""

    def __init__(self, address: str, client: HttpClient) -> None:
        super().__init__(address)
        self._client = client

    @property
    def is_reserved(self) -> bool:
        return self._client.is_reserved

    async def call(self, method: str, body: Body, region: Region, timing: RpcTiming) -> Reply:
        verb, request = _request(method, body, self._client.origin.authority)
        sink = BodySink(region)
        with sink.reply_buffer:
            head = await self._client.fetch(
                request, sink, timing, repeatable=verb in _REPEATABLE, bodiless=verb == "HEAD"
            )
        if verb != "GET":
            return Reply(head.status, sink.reply_buffer.buffer)
        etag = head.headers.get("etag", "") if head.status == 200 else ""
        return Reply(head.status, sink.reply_buffer.buffer, etag if etag.startswith('"') else "", head.headers)

    async def is_unchanged(self, descriptor: list[str], etag: str) -> bool:
        method = descriptor[0].partition(".")[2]
        _, request = _request(f"{method}\nif-none-match: {etag}", b"", self._client.origin.authority)
        # There is room for no body: another version ends as a failure.
        head = await self._client.fetch(request, BodySink(Region(0)), RpcTiming())
        return head.status == 304

    async def detach(self) -> tuple[socket.socket, Literal["tcp", "relay"]]:
        return await self._client.detach()

    def close(self) -> None:
        self._client.close()


def _request(method: str, body: Body, authority: str) -> tuple[str, bytes]:
    first, *lines = method.split("\n")
    request_line = _REQUEST_LINE.fullmatch(first)
    if request_line is None or request_line[1] in ("CONNECT", "TRACE"):
        raise malformed(f"{first[:80]!r} is not a method and a path")
    fields = [f"{request_line[0]} HTTP/1.1\r\nhost: {authority}\r\n{COMMON_FIELDS}"]
    for line in filter(None, lines):
        header = _HEADER.fullmatch(line)
        if header is None or header[1].lower() in _OURS:
            raise malformed(f"{line[:80]!r} is no header that a request may set")
        if header[1].lower() != "accept-encoding":
            fields.append(f"{line}\r\n")
    if body or request_line[1] in ("POST", "PUT", "PATCH"):
        fields.append(f"content-length: {len(body)}\r\n")
    return request_line[1], b"".join((*(field.encode("latin-1") for field in fields), b"\r\n", body))
