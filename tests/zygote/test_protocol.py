"""The two wires as pure bytes: what one end encodes the other decodes, and nothing else passes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.isolation.sandbox.frame_decoder import FrameDecoder
from sockd_zygote import protocol
from sockd_zygote.protocol import FRAME_NAMES, HEADER, ProtocolError

MAX_BODY_BYTES = 4096
LIMITS = dict.fromkeys(FRAME_NAMES, MAX_BODY_BYTES)

kinds = st.sampled_from(sorted(FRAME_NAMES))
numbers = st.integers(0, 2**64 - 1)
bodies = st.binary(max_size=300)
frames = st.lists(st.tuples(kinds, numbers, bodies), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


def decode_all(decoder: FrameDecoder, pieces: list[bytes]) -> list[tuple[int, int, bytes]]:
    decoded = []
    for piece in pieces:
        decoder.feed(piece)
        while (frame := decoder.next_frame()) is not None:
            decoded.append(frame)
    return decoded


@given(frames, st.lists(st.integers(0, 10_000), max_size=10))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    sent: list[tuple[int, int, bytes]], places: list[int]
) -> None:
    stream = b"".join(protocol.encode_frame(kind, number, body) for kind, number, body in sent)
    assert decode_all(FrameDecoder(LIMITS), cut(stream, places)) == sent


@given(frames, st.lists(st.integers(0, 10_000), max_size=10))
def test_taking_frames_late_makes_no_difference(sent: list[tuple[int, int, bytes]], places: list[int]) -> None:
    stream = b"".join(protocol.encode_frame(kind, number, body) for kind, number, body in sent)
    decoder = FrameDecoder(LIMITS)
    for piece in cut(stream, places):
        decoder.feed(piece)
    assert decode_all(decoder, [b""]) == sent


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_any_other_stream_raises_protocol_error_only(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(LIMITS)
    try:
        for kind, _, body in decode_all(decoder, pieces):
            assert kind in FRAME_NAMES and len(body) <= MAX_BODY_BYTES
    except ProtocolError:
        pass


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 255), st.integers(0, 65535), numbers)
def test_a_header_is_right_or_refused(length: int, kind: int, flags: int, zero: int, number: int) -> None:
    decoder = FrameDecoder(LIMITS)
    decoder.feed(HEADER.pack(length, kind, flags, zero, number))
    is_right = kind in FRAME_NAMES and not flags and not zero and length <= MAX_BODY_BYTES
    try:
        assert decoder.next_frame() == (None if length else (kind, number, b""))
        assert is_right
    except ProtocolError:
        assert not is_right


def test_a_body_over_the_limit_is_refused_by_its_header() -> None:
    decoder = FrameDecoder({protocol.RESULT: 10})
    decoder.feed(HEADER.pack(11, protocol.RESULT, 0, 0, 1))
    with pytest.raises(ProtocolError, match="RESULT of 11 bytes, limit 10"):
        decoder.next_frame()


def test_parts_of_a_body_are_joined() -> None:
    decoder = FrameDecoder(LIMITS)
    decoder.feed(protocol.encode_frame(protocol.INVOKE, 7, b"one", b"", b"two"))
    assert decoder.next_frame() == (protocol.INVOKE, 7, b"onetwo")
    assert decoder.next_frame() is None


ops = st.text().filter(lambda op: op not in ("fork", "spawn", "status"))  # which are structs


@given(ops, st.integers(), st.dictionaries(st.text(max_size=5), json_values, max_size=3))
def test_control_messages_come_out_as_they_went_in(op: str, number: int, fields: dict[str, Any]) -> None:
    message = {**fields, "op": op, "id": number}
    decoded = protocol.decode_control(protocol.encode_control(message))
    assert json.dumps(decoded) == json.dumps(message)  # NaN is not equal to itself


@given(st.binary(max_size=300) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_other_datagram_is_a_protocol_error(data: bytes) -> None:
    try:
        message = protocol.decode_control(data)
    except ProtocolError:
        return
    assert isinstance(message["op"], str) and type(message["id"]) is int


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"null",
            b"[]",
            b'"op"',
            b"{}",
            b'{"op":"fork"}',
            b'{"id":1}',
            b'{"op":1,"id":1}',
            b'{"op":"fork","id":"1"}',
        ),
        *(
            b'{"op":"fork","id":1.0}',
            b'{"op":"fork","id":true}',
            b'{"op":"fork","id":null}',
            b"\xff\xfe",
            b'{"op":"f","id":1}x',
        ),
        *(b"[" * 100_000, b'{"op":"fork","id":' + b"9" * 5000 + b"}"),
    ],
)
def test_what_is_no_control_message_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.decode_control(data)


def test_a_control_message_over_the_limit_is_not_sent() -> None:
    protocol.encode_control({"op": "x", "id": 1, "pad": "x" * (protocol.CONTROL_MAX_BYTES - 40)})
    with pytest.raises(ProtocolError, match="limit"):
        protocol.encode_control({"op": "x", "id": 1, "pad": "x" * protocol.CONTROL_MAX_BYTES})


def test_headers_are_what_the_protocol_says() -> None:
    assert (HEADER.size, protocol.INVOCATION.size, protocol.TIMES.size) == (16, 28, 16)
    assert {getattr(protocol, name): name for name in FRAME_NAMES.values()} == FRAME_NAMES


names = st.text(alphabet="abcXYZ019-_.!~", min_size=1, max_size=10)
header_values = st.text(
    alphabet=st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20
)


@given(st.integers(200, 599), st.lists(st.tuples(names, header_values), max_size=4))
def test_heads_come_out_as_they_went_in(status: int, headers: list[tuple[str, str]]) -> None:
    decoded = protocol.decode_head(protocol.encode_head(status, headers))
    expected = [(name.lower().encode(), value.strip(" \t").encode("latin-1")) for name, value in headers]
    assert decoded == (status, expected)


@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_other_head_is_a_protocol_error(data: bytes) -> None:
    try:
        status, headers = protocol.decode_head(data)
    except ProtocolError:
        return
    assert 200 <= status <= 599
    for name, value in headers:
        assert name and not set(name) & set(b" :\r\n\0") and not set(value) & set(b"\r\n\0")


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        *((199, []), (600, []), (True, []), ("200", []), (None, [])),
        *((200, None), (200, 7), (200, ["a"]), (200, [("a",)]), (200, [("a", "b", "c")])),
        *(
            (200, [("", "b")]),
            (200, [("a b", "c")]),
            (200, [("a:", "c")]),
            (200, [("a\r\nb", "c")]),
            (200, [("é", "c")]),
        ),
        *((200, [("a", "b\r\nc: d")]), (200, [("a", "b\nc")]), (200, [("a", "b\0")]), (200, [("a", "\u0100")])),
        *((200, [("a", 1)]), (200, [(b"a", "b")]), (200, [("a", "x" * protocol.HEAD_MAX_BYTES)])),
    ],
)
def test_what_http_cannot_say_is_no_head(status: object, headers: object) -> None:
    with pytest.raises(ValueError):
        protocol.encode_head(status, headers)


def test_a_head_has_a_limited_number_of_headers() -> None:
    most = [("a", "b")] * protocol.HEAD_MAX_HEADERS
    assert len(protocol.decode_head(protocol.encode_head(200, most))[1]) == protocol.HEAD_MAX_HEADERS
    with pytest.raises(ValueError, match="257 headers, limit 256"):
        protocol.encode_head(200, [*most, ("a", "b")])
    with pytest.raises(ProtocolError, match="6001 headers, limit 256"):
        protocol.decode_head(json.dumps([200, [["a", "b"]] * 6001]).encode())


def test_a_sandbox_may_send_what_a_sandbox_says_and_nothing_else() -> None:
    limits = protocol.sandbox_limits(1000)
    assert {FRAME_NAMES[kind] for kind in FRAME_NAMES.keys() - limits.keys()} == {"INIT", "CODE", "INVOKE", "GONE"}
    assert limits[protocol.RESULT] == 1000 + protocol.TIMES.size
    assert max(most for kind, most in limits.items() if kind != protocol.RESULT) <= 512 * 1024
