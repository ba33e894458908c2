"""Answers to requests with an Idempotency-Key, in the database of a group of workers (`postgres_schema` has the table).

    claim ──► run ──► store      the answer, before the client has it; other workers answer with it for `http.replay_s`
                 └──► release    nothing was run: the next request with this key is

A claim names the worker and its epoch. Another worker that gets the request meanwhile waits for the answer, until the claim's
worker is declared dead or has started again: then it claims the key itself. So a function runs twice under one key only if a
worker died, or was silent for `group.silent_s`, while it ran.

    POLICY: while the database is away, such a request gets a 503 and is not run, unless this worker itself has the answer.

Owns the tasks that store answers for which the database was away.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from sockd.base.config import HttpConfig
from sockd.base.errors import DatabaseUnavailable, StorageFull
from sockd.base.postgres.database import Database
from sockd.events.clock import LoopClock, pause
from sockd.events.postgres.recovery import CLOCK, Owner
from sockd.http.replays import RAN, REPLAYED, Key, KeyReused
from sockd.http.server.messages.answers import Answer

LONGEST_RUN_S = 3600.0
"""How long a claim holds, and an hour is more than a request takes with its wait in the queue."""
LOOKS_S = (0.05, 1.0)
"""Between the first two looks for an answer of another worker, and at most."""
AGAIN_S = 1.0
"""Between two attempts to store an answer."""
TRIMMED_AFTER = 64
"""So many answers of this worker are stored between two looks at how many there are."""
LEFT = Answer(499, "", b"")
"""The client has hung up before there was an answer."""
CLAIM = f"""
INSERT INTO answers (key, claim, digest, worker, epoch, until) VALUES ($1, $2, $3, $4, $5, {CLOCK} + $6)
ON CONFLICT (key) DO UPDATE SET claim = excluded.claim, digest = excluded.digest, worker = excluded.worker,
    epoch = excluded.epoch, until = excluded.until, status = NULL, fields = '', body = '', size = 0
WHERE answers.until < {CLOCK} OR answers.claim = excluded.claim OR answers.status IS NULL
    AND NOT EXISTS (SELECT FROM workers WHERE id = answers.worker AND epoch = answers.epoch)
RETURNING true
"""
"""The answer of an earlier attempt may be lost, so the same claim holds again."""
FIND = "SELECT digest, status, fields, body FROM answers WHERE key = $1"
STORE = f"""
UPDATE answers SET status = $3, fields = $4, body = $5, size = $6, until = {CLOCK} + $7 WHERE key = $1 AND claim = $2
"""
RELEASE = "DELETE FROM answers WHERE key = $1 AND claim = $2"
EXPIRE = f"DELETE FROM answers WHERE until < {CLOCK}"
TRIM = """
DELETE FROM answers WHERE key IN (
    SELECT key FROM (
        SELECT key, sum(size) OVER newest AS bytes, row_number() OVER newest AS number FROM answers
        WHERE status IS NOT NULL WINDOW newest AS (ORDER BY until DESC, key)
    ) AS stored WHERE bytes > $1 OR number > $2
)
"""


class Claim(NamedTuple):
    """The right to run the request of a key."""

    key: bytes
    """SHA-256 of the key."""
    token: bytes
    digest: bytes
    """SHA-256 of the payload."""


class Found(NamedTuple):
    """What another request has left under a key."""

    digest: bytes
    answer: Answer | None
    """None: it runs."""


class PostgresAnswers:
    """A `SharedAnswers`."""

    def __init__(self, database: Database, owner: Owner, config: HttpConfig) -> None:
        """Args: owner: this worker, in its group."""
        self._database = database
        self._owner = owner
        self._config = config
        self._clock = LoopClock()
        self._late: set[asyncio.Task[None]] = set()
        self._untrimmed = 0
        self._untrimmed_bytes = 0

    async def once(
        self, key: Key, digest: bytes, run: Callable[[], Awaitable[Answer]], gone: Callable[[], bool]
    ) -> Answer:
        claim = Claim(hashlib.sha256("\0".join(key).encode()).digest(), secrets.token_bytes(16), digest)
        look_s, longest_s = LOOKS_S
        while (found := await self._claim(claim)) is not None:
            if found.digest != digest:
                raise KeyReused
            if found.answer is not None:
                return found.answer.adding(REPLAYED)
            if gone():
                return LEFT
            # No notification: few retries come while the first request runs, and these cost a look each second.
            await pause(self._clock, look_s)
            look_s = min(2 * look_s, longest_s)
        return await self._run(claim, run)

    async def aclose(self) -> None:
        """Give up the answers that the database has not taken yet. Safe to call twice."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _claim(self, claim: Claim) -> Found | None:
        """Claim a key, or return what is under it. Raises: DatabaseUnavailable, StorageFull."""
        while True:
            words = (claim.key, claim.token, claim.digest, *self._owner, LONGEST_RUN_S)
            if await self._database.value(CLAIM, *words):
                return None
            rows = await self._database.run(lambda connection: connection.fetch(FIND, claim.key), begin=False)
            for digest, status, fields, body in rows:
                return Found(digest, Answer(status, fields, body) if status is not None else None)

    async def _run(self, claim: Claim, run: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            answer = await run()
        except BaseException:
            self._write_later(claim, None)
            raise
        kept = answer if RAN in answer.fields else None
        try:
            await self._write(claim, kept)
        except (DatabaseUnavailable, StorageFull):
            self._write_later(claim, kept)
        return answer

    async def _write(self, claim: Claim, answer: Answer | None) -> None:
        """Store an answer; None: nothing was run. Raises: DatabaseUnavailable, StorageFull."""
        if answer is None:
            await self._database.value(RELEASE, claim.key, claim.token)
            return
        size = len(answer.body) + len(answer.fields)
        words = (claim.key, claim.token, answer.status, answer.fields, answer.body, size, self._config.replay_s)
        await self._database.value(STORE, *words)
        self._untrimmed += 1
        self._untrimmed_bytes += size
        if self._untrimmed >= TRIMMED_AFTER or self._untrimmed_bytes >= self._config.replay_bytes // TRIMMED_AFTER:
            self._untrimmed = self._untrimmed_bytes = 0
            await self._database.value(EXPIRE)
            await self._database.value(TRIM, self._config.replay_bytes, self._config.replay_answers)

    def _write_later(self, claim: Claim, answer: Answer | None) -> None:
        task = asyncio.get_running_loop().create_task(self._keep_writing(claim, answer))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _keep_writing(self, claim: Claim, answer: Answer | None) -> None:
        """Write until the database takes it, or the answer is too old to be of use."""
        ends = self._clock.monotonic() + self._config.replay_s
        while self._clock.monotonic() < ends:
            try:
                await self._write(claim, answer)
                return
            except (DatabaseUnavailable, StorageFull):
                await pause(self._clock, AGAIN_S)
