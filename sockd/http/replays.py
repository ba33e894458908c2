"""Replays: repeated requests with the same key run once.

The others wait for the answer of the first, and get it for some minutes after its end. If the first client disconnects before
its request ran, the next waiting request runs. For the id that AWS's SDKs keep over their retries, and for `Idempotency-Key` on
`/run`, of which the workers of a group know from each other (`postgres_answers`). A key that is about a function holds its
incarnation: no function answers for another that had its name before.

Owns the answers, so many bytes of them. What was refused without being run is not kept: to try again is to try.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from sockd.base.config import HttpConfig
from sockd.base.errors import SockdError
from sockd.http.server.messages.answers import Answer

Key = tuple[str, ...]
_HASHED_AT_ONCE = 64 * 1024
_ENTRY_BYTES = 512
"""The memory of an entry besides its answer, roughly."""
RAN = "x-sockd-sandbox: "
"""In the headers of every answer that a sandbox was made to give."""
REPLAYED = "x-sockd-replayed: 1\r\n"


class KeyReused(SockdError):
    """The key was used with another payload before."""

    status = 422
    error_type = "IdempotencyKeyReusedException"

    def __init__(self) -> None:
        super().__init__("this Idempotency-Key was used with another payload; use a new key for a new request")


class Running(NamedTuple):
    """A request under way."""

    digest: bytes
    answer: asyncio.Future[Answer | None]
    """None: its client has hung up, and it was not run."""


class Finished(NamedTuple):
    """A request that has its answer."""

    digest: bytes
    answer: Answer
    until: float


class SharedAnswers(Protocol):
    """The answers of all workers of a group."""

    async def once(
        self, key: Key, digest: bytes, run: Callable[[], Awaitable[Answer]], gone: Callable[[], bool], /
    ) -> Answer:
        """Return the answer of `run`, or of the request that had this key before on any worker.

        Args: digest: of the body. Raises: KeyReused, DatabaseUnavailable, StorageFull: nothing was run; what `run` raises."""


class Replays:
    """`once`, for both APIs."""

    def __init__(
        self,
        config: HttpConfig,
        shared: SharedAnswers | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: shared: for the keys of clients; None: this worker is in no group."""
        self._config = config
        self._shared = shared
        self._now = now
        self._running: dict[Key, Running] = {}
        self._finished: OrderedDict[Key, Finished] = OrderedDict()
        self.size_bytes = 0

    @property
    def stored(self) -> int:
        """The number of answers that are kept."""
        return len(self._finished)

    async def once(
        self,
        key: Key,
        body: bytes | bytearray,
        run: Callable[[], Awaitable[Answer]],
        *,
        strict: bool,
        gone: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """The answer of `run`, or of the request that had this key before.

        Args: strict: another body under the same key is an error; otherwise it is another request; gone: whether the client
        has hung up. Raises: KeyReused, DatabaseUnavailable; what `run` raises."""
        large = len(body) > _HASHED_AT_ONCE
        digest = await asyncio.to_thread(_digest, body) if large else _digest(body)
        while (answer := await self._once(key, digest, run, strict, gone)) is None:
            continue
        return answer

    async def _once(
        self, key: Key, digest: bytes, run: Callable[[], Awaitable[Answer]], strict: bool, gone: Callable[[], bool]
    ) -> Answer | None:
        """None: it waited for a request whose client hung up before it was run."""
        known = self._running.get(key) or self._kept(key)
        if known is not None and known.digest != digest:
            if strict:
                raise KeyReused
            return await run()
        if isinstance(known, Finished):
            return known.answer.adding(REPLAYED)
        if known is not None:
            return await asyncio.shield(known.answer)
        mine = self._running[key] = Running(digest, asyncio.get_running_loop().create_future())
        try:
            shared = self._shared if strict else None
            answer = await (run() if shared is None else shared.once(key, digest, run, gone))
        except SockdError as error:
            mine.answer.set_exception(error)
            mine.answer.exception()  # or asyncio would log it, where no other request waits
            raise
        except BaseException:
            mine.answer.cancel()  # the drain's end, which cancels the requests that wait here, too
            raise
        finally:
            del self._running[key]
        was_left = RAN not in answer.fields and gone()
        mine.answer.set_result(None if was_left else answer)
        self._keep(key, digest, answer)
        return answer

    def _kept(self, key: Key) -> Finished | None:
        found = self._finished.get(key)
        return found if found is not None and found.until > self._now() else None

    def _keep(self, key: Key, digest: bytes, answer: Answer) -> None:
        if RAN not in answer.fields or REPLAYED in answer.fields:
            return
        config, now = self._config, self._now()
        self._forget(key)
        self._finished[key] = Finished(digest, answer, now + config.replay_s)
        self.size_bytes += _size(answer)
        while self._finished:
            oldest = next(iter(self._finished))
            within = len(self._finished) <= config.replay_answers and self.size_bytes <= config.replay_bytes
            if within and self._finished[oldest].until > now:
                return
            self._forget(oldest)

    def _forget(self, key: Key) -> None:
        gone = self._finished.pop(key, None)
        if gone is not None:
            self.size_bytes -= _size(gone.answer)


def _digest(body: bytes | bytearray) -> bytes:
    return hashlib.sha256(body).digest()


def _size(answer: Answer) -> int:
    return len(answer.body) + len(answer.fields) + _ENTRY_BYTES
