"""Pools of initialized sandboxes: so many, whatever becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sockd.base.errors import InitFailed, SockdError
from sockd.functions.serving import provisioned
from sockd.functions.serving.provisioned import Pool, provisioned_init
from sockd.isolation.sandbox.lifecycle import Lifecycle, State, Step
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd_zygote import protocol

pytestmark = pytest.mark.anyio


class FakeSandbox:
    """Has a state, a reservation and an end."""

    def __init__(self, reservation: Reservation) -> None:
        self.lifecycle = Lifecycle(State.IDLE)
        self.reservation = reservation
        self.on_death: Callable[[Any], None] = lambda sandbox: None

    def destroy(self) -> None:
        if not self.lifecycle.is_dead:
            self.lifecycle.advance(Step.DESTROY)
            self.reservation.close()
            self.on_death(self)


class Harness:
    """Starts fake sandboxes, unless it is to fail."""

    def __init__(self) -> None:
        self.error: SockdError | None = None
        self.made: list[FakeSandbox] = []
        self.offered = 0
        self.pool = Pool(self.start, 10, "f:1", self.offer)

    def offer(self) -> None:
        assert self.pool.has_idle
        self.offered += 1

    async def start(self, reservation: Reservation) -> Any:
        if self.error is not None:
            reservation.close()
            raise self.error
        self.made.append(FakeSandbox(reservation))
        return self.made[-1]

    async def settled(self) -> None:
        """Wait until the pool has nothing to do, or waits after a failure."""
        for _ in range(50):
            await asyncio.sleep(0)


async def test_what_ends_is_made_anew_and_what_is_too_much_goes() -> None:
    harness = Harness()
    pool: Any = harness.pool
    pool.resize(3)
    await harness.settled()
    assert (pool.available, len(harness.made), harness.offered) == (3, 3, 3)
    leased = pool.lease()
    leased.lifecycle.state = State.BUSY
    assert pool.available == 3
    leased.destroy()
    pool.keep(leased)
    harness.made[0].destroy()
    await harness.settled()
    assert (pool.available, len(harness.made)) == (3, 5)
    busy = [pool.lease() for _ in range(3)]
    assert pool.lease() is None
    pool.resize(1)
    for sandbox in busy:
        pool.keep(sandbox)
    assert [sandbox.lifecycle.state for sandbox in busy] == [State.DEAD, State.DEAD, State.IDLE]
    pool.close()
    await harness.settled()
    assert pool.available == 0 and all(sandbox.lifecycle.state is State.DEAD for sandbox in harness.made)


async def test_a_failure_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioned, "PAUSE_S", (0.001, 0.002))
    harness = Harness()
    harness.error = InitFailed("ImportError", "no such module", [])
    harness.pool.resize(2)
    await harness.settled()
    assert harness.pool.available == 0 and "no such module" in harness.pool.failure
    harness.error = None
    async with asyncio.timeout(5):
        while harness.pool.available < 2:
            await asyncio.sleep(0)
    assert harness.pool.failure == ""
    harness.pool.close()


async def test_a_pool_that_is_closed_while_it_waits_makes_nothing() -> None:
    harness = Harness()
    harness.error = InitFailed("ImportError", "no", [])
    harness.pool.resize(1)
    await harness.settled()
    harness.error = None
    harness.pool.close()
    await harness.settled()
    assert harness.made == []


def test_the_function_can_see_why_it_was_initialized() -> None:
    init = protocol.encode_init({"name": "f", "env": {"A": "b", "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand"}})
    changed = protocol.decode_init(provisioned_init(init))
    assert changed["env"] == {b"A": b"b", b"AWS_LAMBDA_INITIALIZATION_TYPE": b"provisioned-concurrency"}
    assert changed["name"] == "f"
