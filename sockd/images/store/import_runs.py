"""Runs of the import process, a confined one for each image, from the daemon's side.

The process gets descriptors of: a directory for temporary files, as a detached mount, so that no path leads out of it; the file
that it writes; the archive, if one was uploaded; the answers of the image's Python about sources without bytecode. Whatever ends
an import ends the process, and with it the temporary files. A worker that has images, or a store that they come from, has the
next process wait, as its start takes longer than to find that the store has an image already.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.errors import BadImage, ImageTooLarge, RegistryUnavailable, SandboxFailed, StorageFull
from sockd.base.notes import Progress
from sockd.images.registry.credentials import Credentials, DockerConfig
from sockd.images.registry.limits import Limits
from sockd.images.registry.reference import Reference
from sockd.images.store import import_wire
from sockd.images.store.full_disk import passing
from sockd.images.store.import_wire import (
    Compiled,
    Decision,
    Failed,
    Imported,
    ImportRequest,
    Message,
    Resolved,
    Uncompiled,
)
from sockd.images.store.waiting_process import MEMORY_BYTES, ProcessSettings, WaitingProcess
from sockd.isolation.roots import image_base
from sockd.linux import syscalls
from sockd.linux.cgroups.tree import Cgroup
from sockd.linux.syscalls import MountAttr

FILE, UNCOMPILED = "image.erofs", "uncompiled.erofs"
NEXT_AFTER_S = 3.0
"""How long after an import the next process is started: the function's first start comes first."""
IsWanted = Callable[[str], Awaitable[bool]]
Compile = Callable[[Path, Uncompiled, int, Progress], Awaitable[Compiled]]
"""Have the sources compiled that a file system has no bytecode of; the answer says why some are missing.

Args: the file system's file; the sources; the descriptor of a file that answers are written to.
Raises: NoCapacity, HostFailed: the worker's own trouble."""
_LOOSE = MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """Settings of all imports of a worker."""

    uid: int
    limits: Limits
    deadline_s: float
    insecure_registries: tuple[str, ...] = ()
    redirect_hosts: tuple[str, ...] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """By registry."""
    ca_file: Path | None = None
    docker_config: Path | None = None
    """A file with credentials, as `docker login` writes it; it need not be there."""
    memory_bytes: int = MEMORY_BYTES


class ImportRuns:
    """`run` imports one image. Owns the process that waits."""

    def __init__(
        self,
        settings: ImportSettings,
        root: Path,
        take_cgroup: Callable[[], Cgroup],
        give_back_cgroup: Callable[[Cgroup], None],
    ) -> None:
        """Args: root: a directory that the processes' trees are mounted in."""
        self._settings = settings
        self._root = root
        self._take_cgroup = take_cgroup
        self._give_back_cgroup = give_back_cgroup
        self._waiting: asyncio.Task[WaitingProcess] | None = None
        self._next: asyncio.TimerHandle | None = None
        self.compile: Compile | None = None
        """Set by the owner; None: nothing is compiled."""

    async def run(
        self, reference: Reference, directory: Path, progress: Progress, *, path: str, is_wanted: IsWanted
    ) -> Imported | None:
        """Write an image's file system to FILE in a directory; None: it is not wanted.

        Args:
            path: of an archive that was uploaded; empty: the reference is for a registry.
            is_wanted: asked with the image's digest before any of its layers is fetched.
        Raises: BadImage and its kinds, ImageAccessDenied, RegistryUnavailable, StorageFull, SandboxFailed; HostFailed and
        NoCapacity: the worker lacks what compiling takes."""
        if reference.kind != "registry" and not path:
            raise BadImage("a worker fetches images from registries; other images are uploaded to it")
        deadline_s = self._settings.deadline_s
        try:
            async with asyncio.timeout(deadline_s), AsyncExitStack() as stack:
                return await self._imported(reference, directory, progress, path, is_wanted, stack)
        except TimeoutError:
            raise RegistryUnavailable(
                f"the import of {str(reference)[:200]} took more than {deadline_s:.0f} s (images.import_timeout_s)"
            ) from None

    async def ready(self) -> None:
        """Wait until a process waits for the next import. Raises: SandboxFailed, OSError."""
        self.keep_ready()
        assert self._waiting is not None
        await asyncio.shield(self._waiting)

    def keep_ready(self) -> None:
        """Have a process wait for the next import."""
        self._forget_timer()
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self._start(), name="import process")

    def keep_ready_later(self) -> None:
        """As `keep_ready`, when the function's first start has had its time."""
        if self._next is None and self._waiting is None:
            self._next = asyncio.get_running_loop().call_later(NEXT_AFTER_S, self.keep_ready)

    async def aclose(self) -> None:
        """End the process that waits. No import runs."""
        self._forget_timer()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with suppress(OSError, SandboxFailed):
                await (await waiting).close()

    def _forget_timer(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    async def _start(self) -> WaitingProcess:
        settings = self._settings
        process = ProcessSettings(settings.uid, 2 * settings.limits.max_bytes, settings.memory_bytes)
        return await WaitingProcess.start(process, self._root, self._take_cgroup, self._give_back_cgroup)

    async def _process(self) -> WaitingProcess:
        """The one that waits, or a new one. Raises: SandboxFailed, OSError."""
        while (waiting := self._waiting) is not None:
            await asyncio.wait([waiting])  # it is left to the next import if this one is cancelled meanwhile
            if self._waiting is not waiting:
                continue  # another import has taken it
            self._waiting = None
            try:
                process = waiting.result()
            except (OSError, SandboxFailed) as error:
                _log.warning("no import process waits: %s", error)
            else:
                if process.is_alive:
                    return process
                await process.close()
        return await self._start()

    async def _imported(
        self,
        reference: Reference,
        directory: Path,
        progress: Progress,
        path: str,
        is_wanted: IsWanted,
        stack: AsyncExitStack,
    ) -> Imported | None:
        settings = self._settings
        credentials = await in_thread(self._credentials, reference)
        mirror = settings.mirrors.get(reference.host, "") if reference.kind == "registry" else ""
        of_mirror = await in_thread(self._credentials, reference.at_mirror(mirror)) if mirror else None
        authorities = await in_thread(settings.ca_file.read_text) if settings.ca_file is not None else ""
        output = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, output)
        stack.push_async_callback(in_thread, shutil.rmtree, directory / "scratch", True)
        scratch = _scratch(directory / "scratch", settings.uid)
        stack.callback(os.close, scratch)
        archive = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1
        if archive >= 0:
            stack.callback(os.close, archive)
        answers = -1
        if self.compile is not None:
            answers = _nameless_file(directory)
            stack.callback(os.close, answers)
        process = await self._process()
        stack.push_async_callback(process.close)
        request = ImportRequest(
            reference=str(reference),
            limits=settings.limits,
            credentials=credentials,
            mirror=mirror,
            mirror_credentials=of_mirror,
            authorities=authorities,
            insecure_registries=settings.insecure_registries,
            redirect_hosts=settings.redirect_hosts,
            directories=image_base.DIRECTORIES,
            files=image_base.FILES,
            places=image_base.PLACES,
            has_archive=archive >= 0,
            compiles=answers >= 0,
        )

        async def compile_sources(uncompiled: Uncompiled) -> Compiled:
            async with process.stopped() as is_stopped:
                return await self._compiled(directory, uncompiled, output, answers, progress, is_stopped=is_stopped)

        descriptors = [fd for fd in (scratch, output, archive, answers) if fd >= 0]
        return await _converse(process, request, descriptors, progress, is_wanted, compile_sources)

    async def _compiled(
        self,
        directory: Path,
        uncompiled: Uncompiled,
        output: int,
        answers: int,
        progress: Progress,
        *,
        is_stopped: bool,
    ) -> Compiled:
        """Args: is_stopped: the process cannot change the file system, so that it can be mounted; else a copy is."""
        if self.compile is None:
            raise msgspec.ValidationError("nothing was to be compiled")
        file, copy = directory / FILE, directory / UNCOMPILED
        try:
            if not is_stopped:
                file = copy
                await in_thread(_copy, output, copy)
            return await self.compile(file, uncompiled, answers, progress)
        except OSError as error:
            if (trouble := passing(error)) is not None:
                raise trouble from error
            return Compiled(reason=f"{error.strerror or error}")
        finally:
            await in_thread(copy.unlink, missing_ok=True)

    def _credentials(self, reference: Reference) -> Credentials | None:
        path = self._settings.docker_config
        if path is None or reference.kind != "registry":
            return None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        return DockerConfig.parse(data).credentials(reference.host)


async def _converse(
    process: WaitingProcess,
    request: ImportRequest,
    descriptors: Sequence[int],
    progress: Progress,
    is_wanted: IsWanted,
    compile_sources: Callable[[Uncompiled], Awaitable[Compiled]],
) -> Imported | None:
    has_compiled = False
    try:
        reader, writer = await process.begin(request, descriptors)
        lines = _Lines(reader)
        while (message := await lines.next()) is not None:
            match message:
                case import_wire.Progress(text):
                    progress(text)
                case Resolved(digest):
                    if not await is_wanted(digest):
                        return None
                    writer.write(import_wire.encode(Decision(goes_on=True)))
                    await writer.drain()
                case Uncompiled() if not has_compiled:
                    has_compiled = True
                    writer.write(import_wire.encode(await compile_sources(message)))
                    await writer.drain()
                case Uncompiled():
                    raise msgspec.ValidationError("sources for a second time")
                case Imported():
                    return message
                case Failed():
                    raise _error(message)
    except (ConnectionError, msgspec.MsgspecError) as error:
        _log.warning("the import process broke off: %r", error)
    how = await process.wait()
    if how == "out of memory":
        raise ImageTooLarge("the import needed more memory than it may have: the image has too many files")
    raise SandboxFailed(f"the import process ended without a result: {how}")


class _Lines:
    """Messages, each at most MOST_LINE_BYTES."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()

    async def next(self) -> Message | None:
        """None: the end. Raises: msgspec.MsgspecError."""
        start = 0
        while (end := self._buffer.find(b"\n", start)) < 0:
            start = len(self._buffer)  # or each read would search all that is there
            if start > import_wire.MOST_LINE_BYTES:
                raise msgspec.ValidationError("a message without end")
            data = await self._reader.read(1 << 16)
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return import_wire.decode(line)


def _copy(source: int, path: Path) -> None:
    """A copy of the file system for a mount, where the import process cannot be stopped. Strangers may have taken it over, it can
    write to its own file, and the kernel expects that a mounted one does not change. Disks with clones make one."""
    with open(path, "xb", opener=_private) as file:
        offset, size = 0, os.fstat(source).st_size
        while offset < size:
            done = os.copy_file_range(source, file.fileno(), size - offset, offset, offset)
            if not done:
                return  # it is shorter now: the kernel refuses it
            offset += done


def _nameless_file(directory: Path) -> int:
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.dup(file.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _error(failed: Failed) -> Exception:
    message = "".join(char for char in failed.message if char.isprintable() or char == "\n")
    if failed.kind in import_wire.FAILURES:
        return import_wire.FAILURES[failed.kind](message[:2000])
    if failed.kind == import_wire.STORAGE_FULL:
        return StorageFull()
    _log.error("the import process failed: %s: %s", failed.kind, message[:8000])
    return SandboxFailed(f"the import of the image failed ({failed.kind[:60]}); the worker's log has the details")


def _scratch(path: Path, uid: int) -> int:
    """A directory of the process's own, as a detached mount: `..` leads nowhere from it."""
    path.mkdir(0o700)
    os.chown(path, uid, uid)
    fd = syscalls.open_tree(syscalls.AT_FDCWD, str(path), recursive=False)
    try:
        syscalls.mount_setattr(fd, _LOOSE, recursive=False)
    except BaseException:
        os.close(fd)
        raise
    return fd
