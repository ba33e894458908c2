"""`s3:`: GetObject, HeadObject and ListObjectsV2 of the function's S3, path style; parameters are JSON.

Errors of S3 are replies: their status and XML. A HEAD has no body, so its reply's is made here: the headers, as a JSON
object with names in lower case. All of these only read: what meets a 5xx or a lost connection is asked for again, and what meets
silence is asked for twice. Owns what requests look like.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
import socket
from typing import Literal, NoReturn, TypeVar
from urllib.parse import quote

import msgspec

from sockd_initscripts.region import Region
from sockd_initscripts.rpc.aws.endpoints import AwsService
from sockd_initscripts.rpc.aws.s3_object import ObjectChanged, ObjectRead, Unavailable
from sockd_initscripts.rpc.base import Body, Connection, Reply, RpcFailed, RpcTiming, malformed
from sockd_initscripts.rpc.http1.http import BodySink
from sockd_initscripts.rpc.http1.http_client import HttpClient
from sockd_initscripts.rpc.limits import RpcLimits

LISTING_BYTES = 8 << 20
"""The largest page of a list: a thousand keys of a kilobyte, each of which XML may need several times."""
_RANGE = re.compile(r"bytes=(?:\d{1,15}-\d{0,15}|-\d{1,15})")
_MAX_KEYS = re.compile(r"0|[1-9]\d{0,8}|")


class _Object(msgspec.Struct, forbid_unknown_fields=True):
    bucket: str
    key: str
    range: str | None = None


class _Listing(msgspec.Struct, forbid_unknown_fields=True):
    bucket: str
    prefix: str = ""
    continuation: str = ""
    delimiter: str = ""
    max_keys: str = ""
    start_after: str = ""
    """Empty: not asked for."""

    @property
    def words(self) -> list[str]:
        """What a descriptor has behind the method. Its length says what it holds: no page by a parameter is one without it."""
        rare = [self.delimiter, self.max_keys, self.start_after]
        page = [self.continuation, *rare] if any(rare) else [self.continuation] if self.continuation else []
        return [self.bucket, self.prefix, *page]


_T = TypeVar("_T", _Object, _Listing)


class S3Connection(Connection):
    """A function's S3."""

    def __init__(self, address: str, service: AwsService, client: HttpClient, limits: RpcLimits) -> None:
        super().__init__(address)
        self._service = service
        self._client = client
        self._limits = limits

    @property
    def is_reserved(self) -> bool:
        return self._client.is_reserved

    async def call(self, method: str, body: Body, region: Region, timing: RpcTiming) -> Reply:
        for pause_s in self._limits.repeat_after_s:
            try:
                reply = await self._call(method, body, region, timing)
            except RpcFailed as failure:
                if failure.errno != errno.ECONNRESET and not isinstance(failure, Unavailable):
                    raise
            else:
                if reply.status < 500:
                    return reply
                if reply.buffer is not None:
                    reply.buffer.shrink(0)
            await asyncio.sleep(pause_s)
        return await self._call(method, body, region, timing)

    async def _call(self, method: str, body: Body, region: Region, timing: RpcTiming) -> Reply:
        if method == "GetObject":
            asked = _decode(body, _Object)
            if asked.range is None:
                return await self._get_whole(_object_path(asked), region, timing)
            return await self._ask("GET", _object_path(asked), {"range": asked.range}, region, timing)
        if method == "HeadObject":
            asked = _decode(body, _Object)
            fields = {} if asked.range is None else {"range": asked.range}
            return await self._ask("HEAD", _object_path(asked), fields, region, timing)
        if method == "ListObjectsV2":
            reply = await self._ask("GET", _listing_target(_decode(body, _Listing)), {}, region, timing)
            reply.etag = _digest(reply)
            return reply
        _refuse(method)

    def descriptor(self, method: str, body: Body) -> list[str]:
        if method in ("GetObject", "HeadObject"):
            asked = _decode(body, _Object)
            return [f"s3.{method}", asked.bucket, asked.key, *filter(None, (asked.range,))]
        if method == "ListObjectsV2":
            return [f"s3.{method}", *_decode(body, _Listing).words]
        _refuse(method)

    async def is_unchanged(self, descriptor: list[str], etag: str) -> bool:
        method, bucket, key = descriptor[:3]
        if method == "s3.ListObjectsV2":
            return etag == await self._listing_digest(_Listing(*descriptor[1:]))
        path = _object_path(_Object(bucket, key))
        request = self._service.head("HEAD", path, {"if-none-match": etag})
        head = await self._client.fetch(request, BodySink(Region(0)), RpcTiming(), bodiless=True)
        return head.status == 304

    async def detach(self) -> tuple[socket.socket, Literal["tcp", "relay"]]:
        return await self._client.detach()

    def close(self) -> None:
        self._client.close()

    async def _listing_digest(self, asked: _Listing) -> str:
        """What names the content of a LIST as it is now."""
        region = Region(LISTING_BYTES)
        try:
            return _digest(await self._ask("GET", _listing_target(asked), {}, region, RpcTiming()))
        finally:
            region.close()

    async def _get_whole(self, path: str, region: Region, timing: RpcTiming) -> Reply:
        def make_head(fields: dict[str, str]) -> bytes:
            return self._service.head("GET", path, fields)

        try:
            return await ObjectRead(self._client, make_head, region, self._limits).run(timing)
        except ObjectChanged:
            return await ObjectRead(self._client, make_head, region, self._limits).run(timing)

    async def _ask(self, verb: str, target: str, fields: dict[str, str], region: Region, timing: RpcTiming) -> Reply:
        sink = BodySink(region)
        with sink.reply_buffer as reply_buffer:
            request = self._service.head(verb, target, fields)
            head = await self._client.fetch(request, sink, timing, hedged=True, bodiless=verb == "HEAD")
            if verb == "HEAD":
                headers = msgspec.json.encode(head.headers)
                reply_buffer.allocate(len(headers))[:] = headers
        named = head.headers if verb == "GET" else None  # those of a HEAD are its body
        return Reply(head.status, reply_buffer.buffer, head.headers.get("etag", ""), named)


def _digest(reply: Reply) -> str:
    """Stands for an ETag, which S3 gives to no LIST: the same body has the same. Empty: it is an error of S3."""
    if reply.status != 200 or reply.buffer is None:
        return ""
    return hashlib.sha256(reply.buffer.view).hexdigest()


def _decode(body: Body, kind: type[_T]) -> _T:
    try:
        asked = msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise malformed(f"parameters: {error}") from error
    if not asked.bucket or "/" in asked.bucket:
        raise malformed(f"{asked.bucket!r} is not a bucket")
    if isinstance(asked, _Object) and (not asked.key or not _RANGE.fullmatch(asked.range or "bytes=0-")):
        raise malformed(f"{asked.key!r} is not a key, or {asked.range!r} not a range")
    if isinstance(asked, _Listing) and not _MAX_KEYS.fullmatch(asked.max_keys):
        raise malformed(f"{asked.max_keys!r} is no number of keys")
    return asked


def _object_path(asked: _Object) -> str:
    return f"/{quote(asked.bucket, safe='')}/{quote(asked.key, safe='/~')}"


def _listing_target(asked: _Listing) -> str:
    query = {
        "continuation-token": asked.continuation,
        "delimiter": asked.delimiter,
        "max-keys": asked.max_keys,
        "start-after": asked.start_after,
    }
    query = {name: value for name, value in query.items() if value} | {"list-type": "2", "prefix": asked.prefix}
    # Sorted, as the signature needs them.
    pairs = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))
    return f"/{quote(asked.bucket, safe='')}?{pairs}"


def _refuse(method: str) -> NoReturn:
    raise malformed(f"{method[:80]!r} is none of GetObject, HeadObject, ListObjectsV2")
