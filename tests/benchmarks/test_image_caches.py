"""The reader of a node's stripes in `bench image_caches`."""

from __future__ import annotations

import contextlib
import socket

from benchmarks.image_caches import BUFFER_BYTES, reader_of_stripes, stripe
from sockd.chunk_caches import node_connection
from tests.support.cache_nodes import addresses, cache_nodes


def test_the_reader_of_stripes_has_the_receive_buffer_of_a_worker() -> None:
    body = stripe(bytes(1000))
    path = f"/stripes/{'0' * 64}/0"
    with cache_nodes(1) as nodes, contextlib.closing(reader_of_stripes(addresses(nodes)[0])) as reader:
        reader.request("PUT", path, body)
        assert reader.getresponse().read() == b""
        reader.request("GET", path)
        assert reader.getresponse().read() == body
        assert reader.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * BUFFER_BYTES  # socket(7) doubles it
    assert BUFFER_BYTES == node_connection._RECEIVE_BUFFER_BYTES
