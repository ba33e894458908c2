"""A request in the form that web apps receive.

Pure. The app is mounted at `/run/<name>` and gets the rest of the path.
"""

from __future__ import annotations

from typing import Any

from sockd.http.server.exchange import Exchange

DROPPED = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"http2-settings", b"expect", b"content-length"),
    }
)
"""Headers that concern the hop to the worker only, or that are made anew: the body has come whole."""


def app_request(
    exchange: Exchange, root_path: bytes, raw_path: bytes, query: bytes, body: bytes, *, without: bytes = b""
) -> dict[str, Any]:
    """The value of `details["http"]` (`sockd.base.invoke_request`).

    Args: root_path: where the app is mounted; raw_path: what follows it, undecoded; without: a header that the app does not
    get."""
    head, transport = exchange.head, exchange.connection.transport
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    headers = [
        [name.decode("latin-1"), value.decode("latin-1")]
        for name, value in head.headers
        if name not in DROPPED and name != without
    ]
    if body or head.method in (b"POST", b"PUT", b"PATCH"):
        headers.append(["content-length", str(len(body))])
    upgrade = {"upgrade": "websocket"} if head.asks_for_websocket else {}
    return {
        **upgrade,
        "method": head.method.decode(),
        "raw_path": raw_path.decode("latin-1") or "/",
        "query": query.decode("latin-1"),
        "headers": headers,
        "client": list(peer[:2]) if isinstance(peer, tuple) else None,
        "server": list(own[:2]) if isinstance(own, tuple) else None,
        "scheme": "http",
        "root_path": root_path.decode("latin-1"),
    }
