"""A group of workers without a database: what the management API and `sockd cluster` show of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol


class Calls(Protocol):
    """What a drain of this worker changes."""

    leaving: bool


class FakePeerAnswer:
    """What another worker answers."""

    status = 200
    fields: ClassVar = {"content-type": "application/json", "content-length": "2"}
    is_endless = False

    async def parts(self) -> AsyncGenerator[bytes]:
        yield await self.body()

    async def body(self) -> bytes:
        return b"[]"


class FakeGroup:
    """One worker that is a group of two, of which the other one is gone."""

    name = "g"

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def workers(self) -> list[dict[str, Any]]:
        about = {"address": "127.0.0.1:5000", "version": "0.1.0", "configuration": "0123456789ab", "draining": False}
        load = {"running": 2, "queued": 1, "memory": 0.25, "functions": 12}
        return [
            {
                "name": name,
                "here": name == "w1",
                "state": state,
                **about,
                **load,
                "events": 3,
                "seen_s": seen_s,
                "taken_by": taken_by,
            }
            for name, state, seen_s, taken_by in (("w1", "serving", 0.5, ""), ("w2", "gone", 60.0, "w1"))
        ]

    @asynccontextmanager
    async def ask(self, worker: str, target: bytes, authorization: bytes) -> AsyncGenerator[FakePeerAnswer]:
        yield FakePeerAnswer()

    async def drain(self, *, draining: bool) -> None:
        self._calls.leaving = draining
