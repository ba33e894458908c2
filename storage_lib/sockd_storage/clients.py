"""Clients of S3 that the function makes itself: what its initscript has fetched is the response to the same request.

    boto3 ─ builds and signs a request ─ before-send ─┬─ the very request of the script: its response, from shared memory
                                                      ╰─ any other: over the network, as without this
    boto3 ◄ parses the response, checks sums, retries, calls handlers, as always

POLICY: a request is the script's if it gets an object, a range of it or its head, or lists keys by their prefix, by the URL that
the engine would ask, signed with the function's own key, and says nothing else that could change the answer. Endpoint and key are
those that the function was started with, as the engine's are, whatever its code makes of its variables.
"""

from __future__ import annotations

import _thread

from sockd_storage import reads
from sockd_storage.slices import Slices

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

GET, HEAD, LIST = "s3.GetObject", "s3.HeadObject", "s3.ListObjectsV2"
OPERATIONS = {"GET": GET, "HEAD": HEAD}
HARMLESS = frozenset(
    (
        *("accept-encoding", "amz-sdk-invocation-id", "amz-sdk-request", "authorization", "user-agent"),
        *("x-amz-checksum-mode", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "x-amzn-trace-id"),
    )
)
"""Headers of a request, in lower case, that change nothing in its answer."""
UNDERSTOOD = HARMLESS | {"range", "if-match"}
RARE = ("delimiter", "max-keys", "start-after")
LIST_SAYS = frozenset(("continuation-token", "encoding-type", "list-type", "prefix", *RARE))
"""Parameters of a LIST that an initscript can make."""

_known: Known | None = None
_sent = _thread._local()
"""`read`: the one that this thread has sent over the network."""


class Known:
    """What the engine asks S3 with."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        own = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        self.endpoints = [own.rstrip("/")] if own else [f"https://s3.{region}.amazonaws.com"]
        if not own and region == "us-east-1":
            self.endpoints.append("https://s3.amazonaws.com")
        self.key = environ.get("AWS_ACCESS_KEY_ID", "")
        self.token = environ.get("AWS_SESSION_TOKEN", "")

    def object_of(self, url: str) -> tuple[str, str] | None:
        """The bucket and key that a URL names, with the bucket in its path or before its host; None: something else."""
        found = None if "?" in url else self._path_of(url)
        return found if found is not None and found[1] else None

    def listing_of(self, url: str) -> tuple[str, ...] | None:
        """The bucket and prefix of the LIST that a URL asks for, and behind them what else decides its answer, as the engine's
        descriptor has it; None: something else.

        That is the token of a further page, or with any of `RARE` the token and these, each empty where it is absent."""
        from urllib.parse import parse_qsl

        address, _, query = url.partition("?")
        found = self._path_of(address)
        asked = parse_qsl(query, keep_blank_values=True)
        said = dict(asked)
        if found is None or found[1] or len(said) < len(asked) or not said.keys() <= LIST_SAYS:
            return None
        if said.get("list-type") != "2" or said.get("encoding-type") != "url":
            return None
        if not all(value or name == "prefix" for name, value in asked):
            return None
        token, rare = said.get("continuation-token", ""), [said.get(name, "") for name in RARE]
        return found[0], said.get("prefix", ""), *([token, *rare] if any(rare) else [token] if token else [])

    def _path_of(self, url: str) -> tuple[str, str] | None:
        """The bucket and the rest of a path, which may be empty; None: this is not S3."""
        from urllib.parse import unquote

        for endpoint in self.endpoints:
            scheme, _, host = endpoint.partition("://")
            if url.startswith(f"{endpoint}/"):
                bucket, _, key = url[len(endpoint) + 1 :].partition("/")
            else:
                at, _, key = url.removeprefix(f"{scheme}://").partition("/")
                bucket = at.removesuffix(f".{host}")
                if not url.startswith(f"{scheme}://") or bucket == at:
                    continue
            if bucket:
                return unquote(bucket), unquote(key)
        return None

    def is_own(self, headers: Mapping[str, str]) -> bool:
        """Whether headers, by their names in lower case, sign a request with the function's key, and say nothing further."""
        if not self.key or not headers.keys() <= UNDERSTOOD:
            return False
        is_signed = f" Credential={self.key}/" in headers.get("authorization", "")
        return is_signed and headers.get("x-amz-security-token", "") == self.token


def attend(client: ModuleType, environ: Mapping[str, str]) -> None:
    """Have `botocore.client` make clients of S3 that look here first. Args: environ: the function's, as it was given to it."""
    global _known
    _known = Known(environ)
    original = client.ClientCreator.create_client

    def create_client(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        if made.meta.service_model.service_name == "s3":
            made.meta.events.register_last("before-send.s3", response_to)
            made.meta.events.register_last("response-received.s3", note_received)
        return made

    client.ClientCreator.create_client = create_client


def leave_out(client: Any) -> None:
    """Have a client of the library itself ask the network."""
    client.meta.events.unregister("before-send.s3", response_to)


def response_to(request: Any, **_: Any) -> Any:
    """A handler of `before-send`: what the initscript has fetched for this request; None: send it."""
    import sockd_initscript

    link = sockd_initscript.link()
    if _known is None or (link is None and reads.observer is None):
        return None
    try:
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        rpc = _rpc_of(request, headers, _known)
        if rpc is None:
            return None
        read = reads.Read(rpc)
        # Without a link, it is the init of a snapshot, whose reads are recorded.
        found = None if link is None else _found(link, read, rpc, request, headers.get("if-match"))
    except (AttributeError, ImportError, TypeError, ValueError, OSError):  # another botocore than this knows
        return None
    if found is None:
        _sent.read = read
    else:
        read.done("region")
    return found


def _found(link: Any, read: reads.Read, rpc: list[str], request: Any, etag: str | None) -> Any:
    """The response to a request that the script has fetched; None: it is for the network."""
    if rpc[0] == HEAD and not link.has_heard_of(rpc):
        return _head_of_object(request, read, rpc, link.kept.setdefault("heads", set()))
    if rpc[0] == GET and len(rpc) > 3 and not link.has_heard_of(rpc):
        part = link.kept.setdefault("slices", Slices()).part(read, rpc[1], rpc[2], rpc[3], etag)
        return None if part is None else _made(request, 206, *part)
    message = read.prefetched()
    return None if message is None else _response(request, message, etag)


def note_received(**_: Any) -> None:
    """A handler of `response-received`: tell the trace of a read that went over the network."""
    read = getattr(_sent, "read", None)
    if read is not None:
        _sent.read = None
        read.done("network")


def _rpc_of(request: Any, headers: Mapping[str, str], known: Known) -> list[str] | None:
    operation = OPERATIONS.get(request.method)
    if operation is None or not known.is_own(headers):
        return None
    found = known.object_of(request.url)
    if found is not None:
        return [operation, *found, *([headers["range"]] if "range" in headers else [])]
    if operation != GET or not headers.keys() <= HARMLESS or (listed := known.listing_of(request.url)) is None:
        return None
    return [LIST, *listed]


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _head_of_object(request: Any, read: reads.Read, rpc: list[str], served: set[int]) -> Any:
    """The head of an object that the script gets: once for each time that it does. It stays for the GET that may follow.

    Args: served: numbers of the replies whose heads were served."""
    message = read.prefetched([GET, *rpc[1:]], take=False)
    if message is None or not message.headers or message.number in served:
        return None
    served.add(message.number)
    return _made(request, message.status, message.headers, b"")


def _response(request: Any, message: Any, etag: str | None) -> Any:
    """A response of botocore's own class; None: the script's reply came without its headers, or is of another version.

    Args: etag: the version that is asked for; None: any."""
    if message.rpc[0] == LIST:
        return _listed(request, message)
    import json

    is_head = request.method == "HEAD"
    headers = json.loads(bytes(message.view)) if is_head else message.headers
    if not headers or etag not in (None, headers.get("etag")):
        return None
    return _made(request, message.status, headers, b"" if is_head else message.view)


def _listed(request: Any, message: Any) -> Any:
    """The response to a LIST; None: the script's reply came without its headers, or is none."""
    from sockd_storage import listing

    try:
        body = listing.url_encoded(bytes(message.view))
    except listing.NotAList:
        return None
    headers = message.headers
    if headers and "content-length" in headers:
        headers["content-length"] = str(len(body))
    return _made(request, message.status, headers, body) if headers else None


def _made(request: Any, status: int, headers: dict[str, str], body: bytes | memoryview) -> Any:
    import io

    from botocore.awsrequest import AWSResponse
    from urllib3.response import HTTPResponse

    headers.pop("transfer-encoding", None)
    raw = HTTPResponse(
        io.BytesIO(body),
        headers=headers,
        status=status,
        preload_content=False,
        decode_content=False,
        request_method=request.method,
    )
    return AWSResponse(request.url, status, raw.headers, raw)
