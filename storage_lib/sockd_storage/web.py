"""GETs of `requests`, for functions that have asked for it: what their initscript has fetched is the response.

    requests ─ prepares a request ─ HTTPAdapter.send ─┬─ the very request of the script: its response, from shared memory
                                                      ╰─ any other: over the network, as without this

POLICY: `SOCKD_STORAGE_REQUESTS=1` asks for it, as a server of HTTP promises nothing of when its answers change. A request is the
script's if it is a GET of the same URL with the same headers, without credentials, cookies, a proxy or certificates of the
function's own. After a possible write a response is served if its server says that its ETag is the same still.
"""

from __future__ import annotations

from sockd_storage import reads

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

OURS = frozenset(("accept-encoding", "connection", "user-agent"))
"""Headers of a request, in lower case, that the engine has its own of."""
SECRET = frozenset(("authorization", "cookie", "proxy-authorization"))
"""Headers of requests that go to the network: a script must have no secret, since the trace shows what it asks for."""


def attend(adapters: ModuleType, _environ: Mapping[str, str]) -> None:
    """Have `requests.adapters` look here first."""
    adapter = adapters.HTTPAdapter
    original = adapter.send

    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        rpc = rpc_of(request, *args, **kwargs) if type(self) is adapter else None
        if rpc is None:
            return original(self, request, *args, **kwargs)
        read = reads.Read(rpc)
        message = read.prefetched()
        if message is None or not message.headers or "set-cookie" in message.headers:
            return read.from_network(original, self, request, *args, **kwargs)
        response = self.build_response(request, made(message))
        read.done("region")
        return response

    send.__doc__, send.__qualname__ = original.__doc__, original.__qualname__
    adapter.send = send


def rpc_of(
    request: Any,
    stream: bool = False,
    timeout: Any = None,
    verify: Any = True,
    cert: Any = None,
    proxies: Mapping[str, str] | None = None,
) -> list[str] | None:
    """What the engine would call a request; None: it is none that a script can make. Args: as of `HTTPAdapter.send`."""
    if request.method != "GET" or request.body is not None or cert or any((proxies or {}).values()):
        return None
    scheme, _, rest = request.url.partition("#")[0].partition("://")
    authority, _, path = rest.partition("/")
    if (
        scheme not in ("http", "https")
        or (scheme == "https" and verify is not True)
        or "@" in authority
        or "?" in authority
    ):
        return None
    lines = []
    for name, value in request.headers.items():
        name, value = name.lower(), value.decode("latin-1") if isinstance(value, bytes) else value
        if name in SECRET:
            return None
        if name not in OURS and (name, value) != ("accept", "*/*"):
            lines.append(f"\n{name}: {value}")
    return [f"{scheme}.GET /{path}{''.join(sorted(lines))}", f"{scheme}://{authority}"]


def made(message: Any) -> Any:
    """The response of urllib3 that a script's reply is."""
    import io
    from http.client import responses

    from urllib3.response import HTTPResponse

    headers = {name: value for name, value in message.headers.items() if name != "transfer-encoding"}
    return HTTPResponse(
        io.BytesIO(message.view),
        headers=headers,
        status=message.status,
        reason=responses.get(message.status, ""),
        preload_content=False,
        decode_content=False,
        request_method="GET",
    )
