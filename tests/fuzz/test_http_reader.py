"""Requests on a kept connection are read the same whether their heads are remembered or parsed each time."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from sockd.http.head import Head
from sockd.http.limits import ConnectionLimits
from sockd.http.reader import RequestReader
from tests.fuzz.fuzzing import fuzz

Event = tuple[Any, ...]


class Told(RequestReader):
    """What is told of the bytes, bodies joined."""

    def __init__(self) -> None:
        super().__init__(ConnectionLimits(head_bytes=200))
        self.events: list[Event] = []
        self.refused = False

    def on_head(self, head: Head, *, keep_alive: bool) -> None:
        self.events += [("head", head.method, head.target, head.version, head.headers, keep_alive), (b"",)]

    def on_body(self, data: bytes) -> None:
        self.events[-1] = (self.events[-1][0] + data,)
        if b"too much" in data:
            self.refuse_body()

    def on_whole(self) -> None:
        self.events.append(("whole", self.allowed_s))

    def take(self, data: bytes) -> None:
        """A chunk, unless one was refused."""
        if self.refused:
            return
        refusal = self.feed(data)
        self.events.append(("fed", refusal, self.between, self.allowed_s))
        self.refused = refusal is not None


class Parsed(Told):
    """The same, by the parser each time."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._last = None


HEADS = [
    b"POST /run/a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n",
    b"POST /run/b HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n",
    b"POST /run/a HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n",
    b"POST /run/a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\n",
    b"POST /run/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /run/a HTTP/1.1\nHost: a\nContent-Length: 8\n\n",
    b"POST /run/a HTTP/1.0\r\nHost: a\r\nContent-Length: 4\r\n\r\n",
    b"POST /run/a HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 4\r\n\r\n",
    b"POST /run/a HTTP/1.1\r\nHost: " + b"a" * 200 + b"\r\nContent-Length: 4\r\n\r\n",
    b"GET /run/a HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\nGET /run/a HTTP/1.1\r\nHost: a\r\n\r\n",
    b"",
]
BODIES = [b"", b"abcd", b"\r\n\r\n", b"abcd\r\n\r\n", b"too much", b"1\r\nx\r\n0\r\n\r\n", b"\r\n", b"GET /"]
chunks = st.lists(st.tuples(st.sampled_from(HEADS), st.sampled_from(BODIES)), min_size=1, max_size=2).map(
    lambda parts: b"".join(head + body for head, body in parts)
)


@fuzz(300)
@given(st.lists(st.tuples(chunks, st.integers(1, 4)), max_size=5), st.data())
@example([(HEADS[0] + b"\r\n\r\n", 4), (HEADS[0] + b"abcd", 2)], None)
@example([(HEADS[0] + b"\r\n\r\n" + b"\r\n\r\n", 4), (HEADS[0] + b"\r\n\r\nabcd", 2)], None)
@example([(HEADS[2] + b"too much", 4)], None)
def test_a_remembered_head_is_read_as_a_parsed_one(sent: list[tuple[bytes, int]], data: st.DataObject | None) -> None:
    remembering, parsing = Told(), Parsed()
    for chunk, times in sent:
        for _ in range(times):
            pieces = [chunk]
            if data is not None and data.draw(st.integers(0, 9)) == 0:
                at = data.draw(st.integers(0, len(chunk)))
                pieces = [chunk[:at], chunk[at:]]
            for piece in filter(None, pieces):
                remembering.take(piece)
                parsing.take(piece)
    assert remembering.events == parsing.events


def test_the_third_request_with_the_same_head_is_not_parsed_any_more() -> None:
    told = Told()
    for _ in range(4):
        told.take(HEADS[0] + b"abcd")
    del told._parser
    told.take(HEADS[0] + b"efgh")
    assert (b"efgh",) in told.events
