"""Functions that are recorded and cannot run yet, because a part of them is missing on this worker: after the restore of a
backup, or a loss.

    FilesMissing      code or initscript       fetched from the group in the background, or by the first call
    PackagesMissing   packages                 installed likewise
    UnknownImage      an image of a registry   imported likewise
    ModuleLost        a compiled module        compiled likewise
    ImageLost, CodeLost, SecretsLocked, ...    somebody has to act; the error says how

Owns the records of these functions, each with the error that says what it lacks. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from sockd.base.errors import (
    BeingRestored,
    CodeLost,
    FilesMissing,
    HostFailed,
    ImageLost,
    InstallFailed,
    ModuleLost,
    NoSuchFunction,
    PackagesFailed,
    PackagesMissing,
    SecretsLocked,
    SockdError,
    UnknownImage,
)
from sockd.functions.registry.function_record import FunctionRecord
from sockd.images.store.image_record import ImageRecord

PAUSE_S = (5.0, 300.0)
"""Until functions are tried again that could not be restored: the first time, and at most. Nothing tells when an index or a
registry answers again."""
FETCHED_AT_ONCE = 8
RETRY_S = 10
"""When a caller may try again whose function could not be restored."""

STATES: tuple[tuple[type[SockdError], str], ...] = (
    (FilesMissing, "files to be fetched"),
    (PackagesMissing, "packages to be installed"),
    (PackagesFailed, "packages missing"),
    (UnknownImage, "image to be imported"),
    (ImageLost, "image lost"),
    (CodeLost, "code lost"),
    (ModuleLost, "module to be compiled"),
    (SecretsLocked, "secrets locked"),
)
"""In a few words, by what a function lacks."""
OTHERWISE = "cannot start"
NEEDS_SOMEBODY = (CodeLost, ImageLost, SecretsLocked)
"""The background does not try again."""

_log = logging.getLogger(__name__)


class Unready(NamedTuple):
    """One such function."""

    record: FunctionRecord
    error: SockdError
    """The error that a call gets until the function is restored."""

    @property
    def state(self) -> str:
        """In a few words."""
        return next((words for kind, words in STATES if isinstance(self.error, kind)), OTHERWISE)


class Restoring:
    """For one event loop."""

    def __init__(
        self,
        restore_files: Callable[[FunctionRecord], Awaitable[None]],
        open_function: Callable[[FunctionRecord], object],
        *,
        wait_s: float,
    ) -> None:
        """Args:
        restore_files: get a deploy's packages and its image.
        open_function: make a function live whose files are there.
        wait_s: how long a call waits for both."""
        self._restore_files = restore_files
        self._open_function = open_function
        self._wait_s = wait_s
        self.unready: dict[str, Unready] = {}
        self._again = asyncio.Event()
        """Set when something came that functions lacked, or another function lacks something."""
        self._elsewhere = asyncio.Event()
        """Set when another function lacks files that its group has."""
        self._fetching: set[str] = set()
        self.listeners: list[Callable[[str], object]] = []
        """Each is called with the name of a function that can run now."""

    def note(self, record: FunctionRecord, error: SockdError | OSError) -> None:
        """Note why a recorded deploy cannot run."""
        self.unready[record.name] = Unready(record, why_unready(record.name, error))
        (self._elsewhere if isinstance(error, FilesMissing) else self._again).set()

    async def restore(self, name: str) -> None:
        """Make a function live that is not, for somebody who waits.

        Raises: NoSuchFunction; BeingRestored, if it takes longer than a call waits; InstallFailed; what else it lacks."""
        unready = self._unready(name)
        await self.files(unready.record)
        self._open(name)

    async def files(self, record: FunctionRecord) -> None:
        """Get the files of a deploy, for somebody who waits. Raises: as `restore`."""
        try:
            async with asyncio.timeout(self._wait_s) as limit:
                await self._restore_files(record)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BeingRestored(record.name, self._wait_s) from None
        except PackagesFailed as error:
            raise _not_installed(record.name, error) from error

    async def run(self) -> None:
        """Restore all functions in the background, until it is cancelled: those that lack files of their group at once, so that a
        deploy to another worker is served here soon; the others one after the other."""
        logged: set[str] = set()
        places = asyncio.Semaphore(FETCHED_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_in_turn(logged))
            while True:
                self._elsewhere.clear()
                for name, each in self.unready.items():
                    if isinstance(each.error, FilesMissing) and name not in self._fetching:
                        self._fetching.add(name)
                        tasks.create_task(self._fetch(each, places, logged))
                await self._elsewhere.wait()

    async def _fetch(self, unready: Unready, places: asyncio.Semaphore, logged: set[str]) -> None:
        name = unready.record.name
        try:
            async with places:
                await self._try_one(name, logged)
        finally:
            self._fetching.discard(name)
        if name in self.unready:
            self._elsewhere.set()  # it was deployed again meanwhile
            self._again.set()

    async def _run_in_turn(self, logged: set[str]) -> None:
        pause_s, longest_s = PAUSE_S
        while True:
            self._again.clear()
            for name in self._helped():
                await self._try_one(name, logged)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s if self._helped() else None):
                    await self._again.wait()
            pause_s = PAUSE_S[0] if self._again.is_set() else min(2 * pause_s, longest_s)

    def imported(self, image: ImageRecord) -> None:
        """An image is there that functions may lack."""
        for name, each in self.unready.items():
            if each.record.image == image.digest and isinstance(each.error, ImageLost):
                self.unready[name] = Unready(each.record, UnknownImage(image.digest))
                self._again.set()

    def _helped(self) -> list[str]:
        """The functions that another try may help, but for those that are fetched."""
        by_others = (*NEEDS_SOMEBODY, FilesMissing)
        return [name for name, each in self.unready.items() if not isinstance(each.error, by_others)]

    async def _try_one(self, name: str, logged: set[str]) -> None:
        """Restore one function, if it is still incomplete. Args: logged: the functions whose failure is in the log."""
        if (unready := self.unready.get(name)) is None:
            return  # removed, deployed or called meanwhile
        try:
            await self._restore_files(unready.record)
            self._open(name)
        except (SockdError, OSError) as error:
            failed = why_unready(name, error)
            if (now := self.unready.get(name)) is not None and now.record == unready.record:
                self.unready[name] = now._replace(error=failed)
            if name not in logged:
                logged.add(name)
                _log.warning("the function %s cannot run yet: %s", name, failed.message)
        else:
            _log.info("the function %s can run now", name)

    def _open(self, name: str) -> None:
        """Unless somebody else has, in the meantime."""
        if name in self.unready:
            self._open_function(self.unready[name].record)
            self.unready.pop(name, None)
            for listener in self.listeners:
                listener(name)

    def _unready(self, name: str) -> Unready:
        if name not in self.unready:
            raise NoSuchFunction(f"no function {name!r}; `sockd ls` lists them")
        return self.unready[name]


def why_unready(name: str, error: SockdError | OSError) -> SockdError:
    """Return the error for calls of a function that the worker could not load."""
    if isinstance(error, OSError):
        return HostFailed(f"{name}: {error.strerror}")
    if isinstance(error, PackagesFailed) and not isinstance(error, PackagesMissing):
        return _not_installed(name, error)
    return error


def _not_installed(name: str, error: PackagesFailed) -> InstallFailed:
    failed = InstallFailed(
        f"packages of the function {name!r} are not on this worker any more, and cannot be installed again: {error.message}"
    )
    failed.retry_after_s = RETRY_S
    return failed
