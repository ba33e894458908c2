"""The wire of the app link: what one end encodes the other decodes, and nothing else is decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd_storage_lib.sockd_initscript import wire


@given(st.integers(0, wire.ID_MASK), st.binary(max_size=200))
def test_a_message_comes_out_as_it_went_in(number: int, payload: bytes) -> None:
    message = {"op": "message", "id": number, "rpc": ["s3.GetObject", "b", "ключ\n"]}
    assert wire.decode(wire.encode(message, payload)) == (message, payload)


def test_an_id_of_a_signed_guest_is_made_unsigned() -> None:
    message, _ = wire.decode(wire.encode({"op": "message", "id": -1}))
    assert message["id"] == (1 << 64) - 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"{}\n",
        b"[]\n",
        b"\xff\n",
        b'{"op":"message","id":1}',
        b'{"op":"message"}\n',
        b'{"op":"message","id":true}\n',
        b'{"op":"message","id":"1"}\n',
        b'{"op":["message"],"id":1}\n',
        b'{"op":"unheard of","id":1}\n',
        b'{"op":"sent","id":1,"rpc":null}\n',
        b"[" * 50_000 + b"\n",
    ],
)
def test_what_the_link_does_not_contain_is_refused(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data)


@given(st.binary(max_size=300))
def test_no_bytes_at_all_raise_anything_else(data: bytes) -> None:
    try:
        wire.decode(data)
    except wire.WireError:
        return


def test_a_datagram_over_the_limit_is_not_sent() -> None:
    with pytest.raises(wire.WireError, match="limit 65536"):
        wire.encode({"op": "message", "id": 1}, bytes(wire.MAX_DATAGRAM))
    assert len(wire.encode({"op": "message", "id": 1}, bytes(wire.MAX_PAYLOAD))) < wire.MAX_DATAGRAM
