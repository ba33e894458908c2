"""Calls signed by a function's deployer: the request is verified before it runs, and its answer is signed.

The sandbox learns whether the deployer calls, and accepts pickles from no other caller; the key stays in the daemon. A request
with an invalid signature runs like any other request: its answer is not signed, and the caller refuses it.
Owns nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from sockd.base.call_signature import answer_signature, verified_nonce
from sockd.base.invoke_request import InvokeRequest
from sockd.http.run.run_options import IF_CODE, SIGNATURE
from sockd.http.server.messages.answers import Answer

T = TypeVar("T")

HASHED_AT_ONCE = 256 * 1024
"""Bytes; more are hashed in a thread, as a megabyte takes the loop 0.5 to 3 ms."""


class SignedCall(NamedTuple):
    """One such call."""

    key: bytes
    name: str
    nonce: str

    @classmethod
    async def verified(
        cls, request: InvokeRequest, asked: Mapping[bytes, bytes], key_of: Callable[[str], bytes | None]
    ) -> SignedCall | None:
        """The call, if its function has a key and this request is signed with it."""
        key = key_of(request.name)
        if key is None:
            return None
        header, code = asked[SIGNATURE].decode("latin-1"), asked.get(IF_CODE, b"").decode("latin-1")
        body = request.payload
        nonce = await _hashed(len(body), lambda: verified_nonce(key, request.name, header, code, body))
        return None if nonce is None else cls(key, request.name, nonce)

    async def answered(self, answer: Answer) -> Answer:
        """The answer with its signature."""
        body = answer.body
        signature = await _hashed(
            len(body), lambda: answer_signature(self.key, self.name, self.nonce, answer.status, body)
        )
        return answer.adding(f"x-sockd-signature: {signature}\r\n")


async def _hashed(size: int, work: Callable[[], T]) -> T:
    return work() if size <= HASHED_AT_ONCE else await asyncio.to_thread(work)
