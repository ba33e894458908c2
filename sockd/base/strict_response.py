"""An answer whose chunks have sizes that can be: `http.client` takes "-5" for one.

It then asks its socket for -5 bytes, which is a ValueError, or for -1, which is all that the server ever sends.
"""

from __future__ import annotations

import http.client


class StrictResponse(http.client.HTTPResponse):
    """For `HTTPConnection.response_class`. A negative size is an IncompleteRead, as is one that is no number."""

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:
            raise ValueError("a negative size of a chunk")  # the caller raises IncompleteRead, as for `int`'s own
        return size
