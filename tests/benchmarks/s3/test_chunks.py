"""Bodies whose chunks are signed, as AWS's documentation shows them."""

from __future__ import annotations

import pytest

from benchmarks.s3.chunks import SIGNED, AwsChunkedBody
from benchmarks.s3.errors import S3Error
from tests.base.sigv4.documented import documented, verifier

CHUNKED = documented(
    "PUT",
    "/examplebucket/chunkObject.txt",
    "",
    {
        "host": "s3.amazonaws.com",
        "content-encoding": "aws-chunked",
        "content-length": "66824",
        "x-amz-decoded-content-length": "66560",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
    },
    "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    SIGNED,
)
CHUNKS = [
    (65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
]


class Bytes:
    """A source of bytes that gives a few at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, limit: int) -> bytes:
        data, self._data = self._data[: min(limit, 1000)], self._data[min(limit, 1000) :]
        return data


def chunked(chunks: list[tuple[int, str]], letter: bytes = b"a") -> AwsChunkedBody:
    data = b"".join(b"%x;chunk-signature=%s\r\n%s\r\n" % (size, tag.encode(), letter * size) for size, tag in chunks)
    return AwsChunkedBody(Bytes(data), verifier().verify(CHUNKED))


def test_the_documented_chunks_hold() -> None:
    body = chunked(CHUNKS)
    assert b"".join(iter(lambda: body.read(4096), b"")) == b"a" * 66560


@pytest.mark.parametrize(
    "body",
    [
        chunked(CHUNKS, b"b"),
        chunked([CHUNKS[1], CHUNKS[0], CHUNKS[2]]),
        chunked([CHUNKS[0], CHUNKS[2]]),
        chunked([(65536, CHUNKS[1][1])]),
    ],
    ids=["other bytes", "moved", "left out", "other signature"],
)
def test_chunks_that_were_changed_are_refused(body: AwsChunkedBody) -> None:
    with pytest.raises(S3Error) as error:
        list(iter(lambda: body.read(4096), b""))
    assert error.value.code == "SignatureDoesNotMatch"
