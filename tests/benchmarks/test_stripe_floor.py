"""The floor of reads from cache nodes: each read has the stripes of all four processes."""

from __future__ import annotations

import socket
import threading

import pytest

from benchmarks.image_caches import DATA_STRIPES, STRIPE_BYTES, least_hits
from benchmarks.peers.stripe_floor import StripeFloor


def test_each_read_has_the_stripes_of_four_processes() -> None:
    with least_hits() as floor:
        assert len(floor.read(3)) == 3
        stripes = {bytes(place) for place in floor._places}
    assert len(stripes) == DATA_STRIPES and {len(stripe) for stripe in stripes} == {STRIPE_BYTES}
    assert all(stripe.strip(b"\0") for stripe in stripes)


def test_a_server_that_ends_within_a_stripe_is_an_error() -> None:
    ours, theirs = socket.socketpair()

    def send_half() -> None:
        theirs.recv(1)
        theirs.sendall(bytes(500))
        theirs.close()

    server = threading.Thread(target=send_half)
    server.start()
    with ours, pytest.raises(ConnectionResetError):
        StripeFloor([ours], 1000).read(1)
    server.join()
