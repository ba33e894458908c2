"""The farms of interpreters that are not the worker's own: each is started when its first Zygote is made, and closed after the
last process that its Zygotes have forked.

Owns the farms, their bases and the block of uids that their root Zygotes are in. A farm of its own for each interpreter: its
processes see the files of that interpreter alone, and no process of another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Protocol

from sockd.base.errors import ImageUnavailable, SandboxFailed
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.farm import Farm
from sockd.isolation.farm.uids import UidBlock
from sockd.isolation.farm.walled_networks import Wall
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.assembly import Assembly, open_assembly
from sockd.isolation.roots.base import Tree
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.image_tree import ImageTree
from sockd.isolation.roots.interpreter import Interpreter
from sockd.isolation.roots.program import Limits
from sockd.isolation.sandbox.parts import Parts

START_DEADLINE_S = 30.0
"""For an interpreter to become a Zygote: one whose files come over the network, or without bytecode, takes long."""

_log = logging.getLogger(__name__)


class NoInterpreter(SandboxFailed):
    """There is no such interpreter on this worker any more."""


class Interpreters(Protocol):
    """Where interpreters come from: the host, or images."""

    async def open(self, interpreter: str) -> tuple[Interpreter, Tree]:
        """The interpreter with this id, and a tree for its farm, the caller's. Raises: NoInterpreter, SockdError, OSError."""


class ForeignFarm:
    """One farm, and what sandboxes in it are made from."""

    def __init__(self, interpreter: Interpreter, farm: Farm, parts: Parts, stack: AsyncExitStack) -> None:
        self.interpreter = interpreter
        self.farm = farm
        self.parts = parts
        self.zygotes = 0
        """Root Zygotes whose last process is not gone, and those that are being made."""
        self.is_retired = False
        """Its image is lost: it gets no further Zygote."""
        self.on_lost: Callable[[], None] = lambda: None
        """Its watcher of the image."""
        self._stack = stack

    @classmethod
    async def start(cls, interpreter: Interpreter, tree: Tree, own: Parts, usual: Limits) -> ForeignFarm:
        """Args: tree: owned from now on; own: those of the worker's own interpreter; usual: the limits of most sandboxes.

        Raises: SandboxFailed, OSError; ImageUnavailable: the image is lost."""
        image = tree.image if isinstance(tree, ImageTree) else None
        async with AsyncExitStack() as stack:
            stack.callback(tree.close)
            cgroup = own.cgroups.take()
            stack.callback(own.cgroups.give_back, cgroup)
            try:
                farm = await Farm.start(tree, cgroup, lambda: None, own.ways)
            except (SandboxFailed, OSError) as error:
                await raise_if_lost(image, error)
                raise
            stack.push_async_callback(farm.close)
            if image is not None:
                image.check()
            assembly = open_assembly(own.ways, tree, usual)
            stack.callback(assembly.close)
            parts = replace(own, assembly=assembly, release=farm.release, image=image)
            return cls(interpreter, farm, parts, stack.pop_all())
        raise AssertionError("unreachable")

    @property
    def assembly(self) -> Assembly:
        return self.parts.assembly

    async def aclose(self) -> None:
        """End every process of it."""
        await self._stack.aclose()


class ForeignFarms:
    """The farms of the other interpreters of one worker. `exec_root` for each root Zygote, `aclose` last."""

    def __init__(self, parts: Parts, uids: UidBlock, usual: Limits) -> None:
        """Args: uids: from which each root Zygote gets a block."""
        self._parts = parts
        self._uids = uids
        self._usual = usual
        self._interpreters: dict[str, Interpreters] = {}
        self._farms: dict[str, ForeignFarm] = {}
        """The farms that get further Zygotes, by interpreter."""
        self._by_farm: dict[Farm, ForeignFarm] = {}
        """All that have processes."""
        self.retired: list[Callable[[str, ImageUnavailable], None]] = []
        """Listeners, called with an interpreter and the error when its image is lost: its Zygotes have to end."""
        self._starting: dict[str, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, scheme: str, interpreters: Interpreters) -> None:
        """Interpreters whose ids begin with `scheme:` come from there."""
        self._interpreters[scheme] = interpreters

    @property
    def is_short_of_uids(self) -> bool:
        """Whether all blocks for root Zygotes are in use but those that are kept until others come back."""
        return not self._uids.has_child

    def interpreter(self, interpreter: str) -> Interpreter:
        """Raises: KeyError: it has no farm now."""
        return self._farms[interpreter].interpreter

    def parts_of(self, zygote: Zygote) -> Parts:
        """What the sandboxes of one of their Zygotes are made from. Raises: ZygoteGone: its farm has ended."""
        found = self._by_farm.get(zygote.farm) if zygote.farm is not None else None
        if found is None:
            raise ZygoteGone("the interpreter's farm has ended")
        return found.parts

    def is_retired(self, zygote: Zygote) -> bool:
        """Whether it has no farm any more, or one whose image is lost."""
        found = self._by_farm.get(zygote.farm) if zygote.farm is not None else None
        return found is None or found.is_retired

    async def exec_root(
        self,
        interpreter: str,
        wall: Wall | None,
        on_end: Callable[[Zygote], None],
        *,
        limit_bytes: int,
    ) -> Zygote:
        """A root Zygote of an interpreter; its farm is started if there is none.

        Raises: SandboxFailed, NoCapacity, OSError; SockdError: the interpreters'; ImageUnavailable: its image is lost."""
        async with self._starting.setdefault(interpreter, asyncio.Lock()):
            farm = self._farms.get(interpreter) or await self._start(interpreter)
            farm.zygotes += 1
        try:
            uids = self._uids.take_child(is_root=True)
        except BaseException:
            self._release(farm)
            raise
        image = farm.parts.image
        try:
            zygote = await Zygote.exec_foreign(
                farm.farm,
                farm.interpreter,
                self._parts.cgroups,
                uids,
                on_end,
                limit_bytes=limit_bytes,
                deadline_s=START_DEADLINE_S,
                wall=wall,
                on_gone=lambda zygote: self._give_back(farm, uids),
            )
        except (SandboxFailed, OSError) as error:
            await raise_if_lost(image, error)
            raise
        if image is not None and image.lost is not None:
            zygote.close()
            image.check()
        return zygote

    async def aclose(self) -> None:
        """End all of them."""
        for farm in [*self._by_farm.values()]:
            self._close(farm)
        await self.settled()

    async def settled(self) -> None:
        """Wait until the farms that were closed are gone."""
        while self._closing:
            await asyncio.wait(self._closing)

    async def _start(self, interpreter: str) -> ForeignFarm:
        interpreters = self._interpreters.get(interpreter.partition(":")[0])
        if interpreters is None:
            raise NoInterpreter(f"this worker has no interpreter {interpreter!r}")
        found, tree = await interpreters.open(interpreter)
        farm = self._farms[interpreter] = await ForeignFarm.start(found, tree, self._parts, self._usual)
        self._by_farm[farm.farm] = farm
        if (image := farm.parts.image) is not None:
            farm.on_lost = partial(self._retire, farm)
            image.watchers.add(farm.on_lost)
        _log.info("Python %s (%s) has a farm", found.words, interpreter)
        return farm

    def _retire(self, farm: ForeignFarm) -> None:
        """Its image is lost: it ends with its last sandbox. The next root of its interpreter gets a farm on the new mount."""
        if farm.is_retired or farm.farm not in self._by_farm:
            return
        farm.is_retired = True
        del self._farms[farm.interpreter.id]
        image = farm.parts.image
        assert image is not None and image.lost is not None
        for listener in self.retired:
            listener(farm.interpreter.id, image.lost)

    def _give_back(self, farm: ForeignFarm, uids: UidBlock) -> None:
        self._uids.give_back_child(uids)
        self._release(farm)

    def _release(self, farm: ForeignFarm) -> None:
        farm.zygotes -= 1
        if not farm.zygotes and farm.farm in self._by_farm:
            self._close(farm)

    async def _ended(self, farm: ForeignFarm) -> None:
        await farm.aclose()
        _log.info("Python %s (%s) has no farm any more", farm.interpreter.words, farm.interpreter.id)

    def _close(self, farm: ForeignFarm) -> None:
        del self._by_farm[farm.farm]
        if not farm.is_retired:
            del self._farms[farm.interpreter.id]
        if (image := farm.parts.image) is not None:
            image.watchers.discard(farm.on_lost)
        task = asyncio.get_running_loop().create_task(self._ended(farm))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def raise_if_lost(image: ImageBase | None, error: Exception) -> None:
    """Something failed in an image. Raises: ImageUnavailable: that it is lost is the cause."""
    if image is not None and (lost := await image.why_lost()) is not None:
        raise lost from error
