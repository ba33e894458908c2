"""Runs of the import process, a confined one for each image, from the daemon's side.

The process has an own uid, no capability, a seccomp filter, a tree with the interpreter and our packages, and the host's network.
It gets three descriptors: a directory for temporary files, as a detached mount, so that no path leads out of it; the file that
it writes; the archive, if one was uploaded. Whatever ends an import ends the process, and with it the temporary files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sockd.image_store import import_wire
from sockd.image_store.import_wire import Decision, Failed, Imported, ImportRequest, Message, Resolved
from sockd.images import base as bases
from sockd.images import image_base
from sockd.images.base import Base, Bind
from sockd.kernel import syscalls
from sockd.kernel.cgroups.tree import Cgroup
from sockd.kernel.syscalls import MountAttr
from sockd.oci.credentials import Credentials, DockerConfig
from sockd.oci.limits import Limits
from sockd.oci.reference import Reference
from sockd.plain.blocking import in_thread
from sockd.plain.errors import BadImage, ImageTooLarge, RegistryUnavailable, SandboxFailed, StorageFull
from sockd_initscripts.client import process as processes
from sockd_initscripts.client.process import ConfinedProcess, Ground

FILE = "image.erofs"
MODULE = "sockd.image_store.import_process"
MEMORY_BYTES, TMP_BYTES, PIDS = 2 << 30, 1 << 20, 16
"""The memory includes the page cache of its temporary files, which the kernel writes back when there is no more."""
Progress = Callable[[str], None]
IsWanted = Callable[[str], Awaitable[bool]]
_LOOSE = MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """Of all imports of a worker."""

    uid: int
    limits: Limits
    deadline_s: float
    insecure_registries: tuple[str, ...] = ()
    docker_config: Path | None = None
    """A file with credentials, as `docker login` writes it; it need not be there."""
    memory_bytes: int = MEMORY_BYTES


class ImportRuns:
    """`run` imports one image."""

    def __init__(
        self,
        settings: ImportSettings,
        root: Path,
        take_cgroup: Callable[[], Cgroup],
        give_back_cgroup: Callable[[Cgroup], None],
    ) -> None:
        """Args: root: a directory that the processes' trees are mounted in, while an import runs."""
        self._settings = settings
        self._root = root
        self._take_cgroup = take_cgroup
        self._give_back_cgroup = give_back_cgroup

    async def run(
        self, reference: Reference, directory: Path, progress: Progress, *, path: str, is_wanted: IsWanted
    ) -> Imported | None:
        """Write an image's file system to FILE in a directory; None: it is not wanted.

        Args:
            path: of an archive that was uploaded; empty: the reference is for a registry.
            is_wanted: asked with the image's digest before any of its layers is fetched.
        Raises: BadImage and its kinds, ImageAccessDenied, RegistryUnavailable, StorageFull, SandboxFailed."""
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
        output = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, output)
        stack.push_async_callback(in_thread, shutil.rmtree, directory / "scratch", True)
        scratch = _scratch(directory / "scratch", settings.uid)
        stack.callback(os.close, scratch)
        archive = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1
        if archive >= 0:
            stack.callback(os.close, archive)
        ground = await self._ground(stack)
        keep = tuple(fd for fd in (scratch, output, archive) if fd >= 0)
        process = await ConfinedProcess.start(
            ground,
            *("-m", MODULE),
            uid=settings.uid,
            memory_bytes=settings.memory_bytes,
            tmp_bytes=TMP_BYTES,
            pids=PIDS,
            network="host",
            keep=keep,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limits={"RLIMIT_FSIZE": 2 * settings.limits.max_bytes},
        )
        stack.push_async_callback(process.close)
        request = ImportRequest(
            reference=str(reference),
            limits=settings.limits,
            credentials=credentials,
            insecure_registries=settings.insecure_registries,
            directories=image_base.DIRECTORIES,
            files=image_base.FILES,
            places=image_base.PLACES,
            scratch_fd=scratch,
            output_fd=output,
            archive_fd=archive,
        )
        return await _converse(process, request, progress, is_wanted)

    async def _ground(self, stack: AsyncExitStack) -> Ground:
        """A tree for one process, so that a worker without imports has none."""
        places = processes.software()
        root = self._root / f"import-{time.monotonic_ns()}"
        binds = [*bases.software(), *(Bind(source, target) for source, target in places)]
        stack.push_async_callback(in_thread, _close_ground, root)
        await in_thread(Base.build, root, binds)
        paths = processes.import_paths(places)
        return Ground(root, bases.interpreter(), paths, self._take_cgroup, self._give_back_cgroup)

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
    process: ConfinedProcess,
    request: ImportRequest,
    progress: Progress,
    is_wanted: IsWanted,
) -> Imported | None:
    reader, writer = process.launcher.stdout, process.launcher.stdin
    assert reader is not None and writer is not None
    lines = _Lines(reader)
    try:
        writer.write(import_wire.encode(request))
        await writer.drain()
        while (message := await lines.next()) is not None:
            match message:
                case import_wire.Progress(text):
                    progress(text)
                case Resolved(digest):
                    if not await is_wanted(digest):
                        return None
                    writer.write(import_wire.encode(Decision(goes_on=True)))
                    await writer.drain()
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
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > import_wire.MOST_LINE_BYTES:
                raise msgspec.ValidationError("a message without end")
            data = await self._reader.read(1 << 16)
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return import_wire.decode(line)


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


def _close_ground(root: Path) -> None:
    """Also if it was not built, or not to its end."""
    if root.exists():
        Base(root).close()
        root.rmdir()
