"""`bench image_caches`: the reader of a node's stripes, and the sizes of the caches whose hit rates are simulated."""

from __future__ import annotations

import contextlib
import socket

from benchmarks.harness.results import Result
from benchmarks.image_caches import BUFFER_BYTES, FLEETS, measure_simulated, reader_of_stripes, stripe
from sockd.base.config import ImagesConfig
from sockd.client.cli.worker.cache_node import cache_node
from sockd.images.caches import node_connection
from tests.support.images.cache_nodes import addresses, cache_nodes


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


def test_hit_rates_are_shown_for_default_sizes_next_to_those_that_are_chosen() -> None:
    l1, l2 = FLEETS["default sizes"]
    assert l1 << 19 == ImagesConfig().cache_mb << 20
    memory_mb = next(int(each.to_info_dict()["default"]) for each in cache_node.params if each.name == "memory_mb")
    assert l2 * 5 << 17 == 5 * memory_mb << 20, "a chunk is five stripes of 128 KiB"
    measure_simulated(result := Result("image_caches"))
    assert 65 < result.row("LRU-2, Zipf trace of images, L1 sized to the paper's 67 %", "reads from l1").p50 < 69
    assert result.row("LRU-2, Zipf trace of images, default sizes", "reads from l1").p50 > 85
    assert any(f"default sizes: L1 has {l1} chunks" in note for note in result.notes)
