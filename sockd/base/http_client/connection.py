"""One connection of `http.client`, which checks what that leaves unchecked, and words for its failures."""

from __future__ import annotations

import http.client
import socket
import ssl

BROKEN = (OSError, http.client.HTTPException)
"""What a connection raises when it breaks."""


class StrictResponse(http.client.HTTPResponse):
    """An answer in which a chunk of negative size is an IncompleteRead, as is one whose size is not a number.

    `http.client` accepts "-5". It then reads -5 bytes of its socket, which is a ValueError, or -1, which is all that the server
    ever sends."""

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:
            raise ValueError("a negative size of a chunk")  # the caller raises IncompleteRead, as for `int`'s own
        return size


def new_connection(
    host: str, port: int | None, *, timeout_s: float, tls: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    """Make a connection that is not connected yet. Args: tls: None: plain HTTP."""
    connection: http.client.HTTPConnection
    if tls is not None:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    connection.response_class = StrictResponse
    return connection


def words(error: Exception) -> str:
    """Say why a connection failed or broke, in at most 200 characters."""
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, socket.gaierror):
        return "the name is not known (DNS)"
    if isinstance(error, http.client.IncompleteRead):
        return "its answer ended early"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "it does not speak HTTP"
    text = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    return text[:200]
