"""The sources of sandboxes are asked in order, once; a source that gives nothing keeps nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sockd.base.errors import ImageUnavailable, NoCapacity
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.starts.sources import Started, Starts, Wanted
from sockd.starts.zygotes.top_levels.soundness import NO_PACKAGES

pytestmark = pytest.mark.anyio
MB = 1 << 20


class Sandboxes:
    """The handler cache and the tree, by what they are asked for: `has` is what there is."""

    most, most_levels = 1, 3

    def __init__(self, *has: str, memory: int = 1) -> None:
        self.has = list(has)
        self.asked: list[str] = []
        self.budget = MemoryBudget(memory * MB)
        self.wanted = Wanted(NO_PACKAGES, cast(Program, SimpleNamespace(limits=None)), self)
        self.spares = self.children = self
        self.starts = Starts(self, self)  # type: ignore[arg-type]
        self.gone = 0
        """Forks that fail, as the Zygote has ended."""
        self.failure: Exception = ZygoteGone("it has ended")

    def reserve_nowait(self, program: object) -> Reservation | None:
        return self.budget.reserve_nowait(MB)

    async def reserve(self, program: object) -> Reservation:
        return await self.budget.reserve(MB, deadline_s=0.01)

    def _take(self, what: str) -> Any:
        self.asked.append(what)
        return what if what in self.has else None

    def lease(self, program: object) -> Any:
        return self._take("idle")

    def best_now(self, view: object) -> Any:
        return self._take("node")

    async def living_best(self, view: object) -> Any:
        return "node"

    def take(self, node: object, reservation: Reservation) -> Any:
        return self._take("spare")

    async def fork(self, node: object, program: object, reservation: Reservation) -> Any:
        self.asked.append("fork")
        if self.gone:
            self.gone -= 1
            reservation.close()
            raise self.failure
        return "fork"

    async def found(self) -> tuple[Any, str]:
        started = await self.starts.new(self.wanted)
        return started.sandbox, started.origin


@pytest.mark.parametrize(
    ("has", "asked", "found"),
    [
        (("idle", "node", "spare"), ["node", "spare"], ("spare", "spare")),
        (("idle", "node"), ["node", "spare", "spare", "fork"], ("fork", "zygote")),
        ((), ["node", "spare", "fork"], ("fork", "zygote")),
    ],
)
async def test_the_first_source_of_new_ones_that_has_one_gives_it(
    has: tuple[str, ...], asked: list[str], found: tuple[str, str]
) -> None:
    sandboxes = Sandboxes(*has)
    assert await sandboxes.found() == found
    assert sandboxes.asked == asked
    assert sandboxes.budget.used == MB


@pytest.mark.parametrize("has", [("idle", "node", "spare"), ("node", "spare")])
async def test_an_idle_one_is_asked_for_by_itself(has: tuple[str, ...]) -> None:
    sandboxes = Sandboxes(*has)
    found = sandboxes.starts.find_idle(cast(Program, SimpleNamespace()))
    assert (found is not None) == ("idle" in has)
    assert sandboxes.asked == ["idle"] and not sandboxes.budget.used


async def test_only_a_fork_is_waited_for() -> None:
    sandboxes = Sandboxes("node", "spare")
    assert isinstance(sandboxes.starts.find_new(sandboxes.wanted), Started)
    sandboxes.has.remove("spare")
    sandboxes.budget = MemoryBudget(MB)
    starting = sandboxes.starts.find_new(sandboxes.wanted)
    assert not isinstance(starting, Started) and "fork" not in sandboxes.asked
    assert sandboxes.budget.used == 0, "nothing is held until it is waited for"
    assert (await starting()).origin == "zygote"


async def test_a_start_that_waited_for_memory_takes_a_spare() -> None:
    sandboxes = Sandboxes("node", "spare")
    held = sandboxes.budget.reserve_nowait(MB)
    assert held is not None
    starting = sandboxes.starts.find_new(sandboxes.wanted)
    assert not isinstance(starting, Started) and sandboxes.asked == []
    held.close()
    assert (await starting()).origin == "spare"


async def test_a_start_without_memory_is_refused() -> None:
    with pytest.raises(NoCapacity):
        await Sandboxes("node", "spare", memory=0).found()


@pytest.mark.parametrize(("gone", "holds"), [(2, True), (3, False)])
async def test_a_zygote_that_ends_is_replaced_once_for_each_level(gone: int, holds: bool) -> None:
    sandboxes = Sandboxes("node")
    sandboxes.gone = gone
    if holds:
        assert await sandboxes.found() == ("fork", "zygote")
    else:
        with pytest.raises(ZygoteGone):
            await sandboxes.found()
    assert sandboxes.budget.used == (MB if holds else 0)
    assert sandboxes.asked.count("fork") == 3


async def test_a_start_whose_image_is_lost_is_tried_again_on_the_next_mount() -> None:
    sandboxes = Sandboxes("node", memory=2)
    sandboxes.most_levels = 1
    sandboxes.gone, sandboxes.failure = 1, ImageUnavailable("the agent is gone")
    assert await sandboxes.found() == ("fork", "zygote")
    assert sandboxes.asked.count("fork") == 2 and sandboxes.budget.used == MB
    sandboxes.gone = 2
    with pytest.raises(ImageUnavailable, match="the agent is gone"):
        await sandboxes.found()
    assert sandboxes.budget.used == MB


class Programs:
    """The Zygotes of programs, the first of which fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    async def fork(self, program: Program, reservation: Reservation) -> str:
        if self.failures:
            reservation.close()
            raise self.failures.pop(0)
        return "fork"


async def test_a_start_of_a_program_whose_image_is_lost_has_it_mounted_again() -> None:
    sandboxes, mounts = Sandboxes(), 0

    async def mount_image() -> None:
        nonlocal mounts
        mounts += 1

    program: Any = SimpleNamespace(limits=None, image=object(), mount_image=mount_image)
    starts: Any = Starts(sandboxes, sandboxes, Programs(ImageUnavailable("the agent is gone")))  # type: ignore[arg-type]
    started = await starts.new(Wanted(NO_PACKAGES, program, sandboxes))
    assert (started.sandbox, mounts, sandboxes.budget.used) == ("fork", 2, MB)
