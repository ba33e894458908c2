"""The import process: fetches an image and writes its file system. Exec'd unprivileged, with nothing of the host but its network.

    python -m sockd.images.store.import_process FD

It reads what strangers wrote (registries' answers, compressed data, tar files), so it has no secret but the credentials of the
one registry, and no file but those whose descriptors it got. It ends with the socket FD, on which it waits for its request.
"""

from __future__ import annotations

import errno
import os
import queue
import socket
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import msgspec

from sockd.base.errors import ImageAccessDenied, NoSuchImage, RegistryUnavailable, SockdError
from sockd.base.file_tree import FileTree
from sockd.images.registry.bytecode import mend_times
from sockd.images.registry.credentials import Credentials
from sockd.images.registry.destinations import Destinations
from sockd.images.registry.http import HttpClient, default_tls
from sockd.images.registry.image import OciImage, Source
from sockd.images.registry.limits import Limits
from sockd.images.registry.merge import apply_layers, unreadable_note
from sockd.images.registry.reference import Kind, Reference
from sockd.images.registry.sources import open_source
from sockd.images.registry.unpacked import UnpackedLayers
from sockd.images.store import import_wire
from sockd.images.store.image_facts import ImageFacts, facts_of
from sockd.images.store.import_wire import (
    Compiled,
    Decision,
    Failed,
    Imported,
    ImportRequest,
    Progress,
    Resolved,
    Uncompiled,
)
from sockd.images.store.missing_bytecode import (
    MOST_BYTECODE_BYTES,
    CompileJob,
    add_bytecode,
    compile_jobs,
    with_all_bytecode,
)
from sockd.linux import descriptor_passing
from sockd.linux.erofs.layout import Layout
from sockd.linux.erofs.metadata import Metadata
from sockd.linux.erofs.mount_points import add_mount_points

NICE = 5
"""Requests come first."""
REPORT_S = 0.5
"""Between two lines of progress of the same stage."""
_UPLOADED: dict[Kind, Kind] = {"oci": "oci-archive", "stdin": "path"}
"""A client sends the directory of a layout as an archive, and what it has on its standard input."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Unwanted(Exception):
    """The daemon has the image already."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What the process may read and write."""

    scratch: int
    output: int
    archive: int = -1
    answers: int = -1

    @classmethod
    def of(cls, request: ImportRequest, received: list[int]) -> Descriptors:
        """Raises: ValueError, if these are not those of the request."""
        scratch, output, *more = received
        archive = more.pop(0) if request.has_archive else -1
        answers = more.pop(0) if request.compiles else -1
        return cls(scratch, output, archive, answers)


def import_image(request: ImportRequest, descriptors: Descriptors, wire: Wire, tls: ssl.SSLContext) -> Imported:
    """Write the image's file system to the request's file. Raises: Unwanted; SockdError; OSError."""
    scratch = f"/proc/self/fd/{descriptors.scratch}"
    reference = Reference.parse(request.reference)
    if request.has_archive:
        reference = replace(reference, kind=_UPLOADED.get(reference.kind, reference.kind))
    if request.authorities:
        tls.load_verify_locations(cadata=request.authorities)
    destinations = Destinations(insecure_hosts=request.insecure_registries, redirect_hosts=request.redirect_hosts)
    client = HttpClient(destinations=destinations, tls=tls)

    def opened(where: Reference, credentials: Credentials | None) -> Source:
        path = descriptors.archive if request.has_archive else ""
        settings = {"path": path, "platform": request.platform, "limits": request.limits}
        return open_source(where, scratch, credentials=credentials, client=client, **settings)  # type: ignore[arg-type]

    with _first_that_has(request, reference, opened, wire) as (source, image):
        fetching = _Fetching(image, wire)
        with closing(UnpackedLayers.fetch(source, image.layers, scratch, request.limits, fetching.report)) as layers:
            wire.progress("merging layers")
            merged = apply_layers(layers, request.limits)
            facts = facts_of(merged.tree, layers, image.config)
            mend_times(merged.tree, layers)
            add_mount_points(merged.tree, directories=request.directories, files=request.files, places=request.places)
            jobs: tuple[CompileJob, ...] = ()
            if request.compiles:
                jobs = compile_jobs(merged.tree, layers, facts, image.config, request.limits)
            full = with_all_bytecode(merged.tree, jobs, layers.count) if jobs else merged.tree
            metadata_bytes = Metadata.of(full).size_bytes if jobs else 0
            layout = Layout.plan(merged.tree, metadata_bytes=metadata_bytes)
            _write(layout, layers, descriptors.output, wire)
            unreadable = unreadable_note(merged.tree, *facts.owner)
            notes = (*merged.notes, unreadable) if unreadable else merged.notes
            if jobs:
                uncompiled = Uncompiled(image.config.env, jobs)
                added, note = _compile(merged.tree, layers, facts, uncompiled, request.limits, descriptors, wire)
                notes += (note,) if note else ()
                if added:
                    facts = facts_of(merged.tree, layers, image.config)
                    written, layout = layout, Layout.plan(merged.tree, metadata_bytes=metadata_bytes)
                    _write(layout, layers, descriptors.output, wire, added_from=layout.added_from(written) or 0)
    return Imported(
        digest=image.digest,
        config=image.config,
        facts=facts,
        layers=len(image.layers),
        size_bytes=layout.size_bytes,
        metadata_chunks=layout.metadata_chunks,
        notes=notes,
    )


@contextmanager
def _first_that_has(
    request: ImportRequest, reference: Reference, opened: Callable[[Reference, Credentials | None], Source], wire: Wire
) -> Iterator[tuple[Source, OciImage]]:
    """The source of an image and what it says of it: a mirror, or the registry that the reference names.

    Raises: as `Source.resolve`."""
    if request.mirror:
        mirror = opened(reference.at_mirror(request.mirror), request.mirror_credentials)
        try:
            image = mirror.resolve(wire.ask)
        except (NoSuchImage, ImageAccessDenied, RegistryUnavailable) as error:
            wire.progress(f"not from the mirror {request.mirror}: {error.message}")
        else:
            with closing(mirror):
                yield mirror, image
            return
    with closing(opened(reference, request.credentials)) as source:
        yield source, source.resolve(wire.ask)


def _compile(
    tree: FileTree,
    layers: UnpackedLayers,
    facts: ImageFacts,
    uncompiled: Uncompiled,
    limits: Limits,
    descriptors: Descriptors,
    wire: Wire,
) -> tuple[int, str]:
    """Have sources compiled, and add their bytecode to the tree.

    Returns: how many were added, and a note for people, or nothing. Raises: OSError, EOFError."""
    answer = wire.compiled(uncompiled)

    def read(offset: int, size: int) -> bytes:
        return os.pread(descriptors.answers, size, offset)

    most_bytes = min(MOST_BYTECODE_BYTES, limits.max_bytes - facts.size_bytes)
    added = add_bytecode(tree, uncompiled.jobs, answer.batches, read, layers.append, most_bytes)
    if not answer.reason and added:
        return added, ""  # some sources of large packages are for other versions of Python
    reason = answer.reason or "its Python has compiled nothing"
    if not added:
        return added, f"bytecode was not compiled: {reason}"
    return added, f"bytecode was not compiled for all of {uncompiled.sources} sources, but for {added}: {reason}"


def _write(layout: Layout, layers: UnpackedLayers, fd: int, wire: Wire, *, added_from: int = 0) -> None:
    """Write an image, over what is there. Args: added_from: the data before is there already."""
    at = 0
    for chunk in layout.chunks(layers, begin=added_from):
        if at == len(layout.metadata):
            at = max(at, added_from)
        _write_at(fd, chunk, at)
        at += len(chunk)
        wire.progress(f"writing the file system: {at >> 20} of {layout.size_bytes >> 20} MB", is_often=True)
    os.ftruncate(fd, layout.size_bytes)
    os.fsync(fd)


def _write_at(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count


class _Fetching:
    """Progress of layers that are fetched at once."""

    def __init__(self, image: OciImage, wire: Wire) -> None:
        self._done = [0] * len(image.layers)
        count = len(image.layers)
        self._what = f"fetching {count} layer{'' if count == 1 else 's'}"
        self._wire = wire

    def report(self, layer: int, size_bytes: int) -> None:
        """Called from several threads."""
        self._done[layer] = size_bytes
        self._wire.progress(f"{self._what}: {sum(self._done) >> 20} MB", is_often=True)


class Wire:
    """The process's end of the wire. Messages come from several threads."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._incoming = control.makefile("rb")
        self._lock = threading.Lock()
        self._next_s = 0.0
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def ask(self, digest: str) -> None:
        """What the daemon decides about an image. Raises: Unwanted; EOFError if it is gone."""
        self.send(Resolved(digest))
        line = self._incoming.readline()
        if not line:
            raise EOFError("the daemon is gone")
        if not msgspec.json.decode(line, type=Decision).goes_on:
            raise Unwanted
        os.nice(NICE)  # from here on there is work
        threading.Thread(target=self._end_with_the_daemon, daemon=True).start()

    def request(self) -> tuple[ImportRequest, Descriptors] | None:
        """Say that this process waits; what is to be imported. None: the daemon needs no import any more. Raises: ValueError."""
        self._control.sendall(b"\n")
        _, received = descriptor_passing.receive(self._control, 1, import_wire.MOST_DESCRIPTORS)
        line = self._incoming.readline()
        if not line:
            return None
        request = msgspec.json.decode(line, type=ImportRequest)
        return request, Descriptors.of(request, received)

    def compiled(self, uncompiled: Uncompiled) -> Compiled:
        """What the image's Python has made of sources."""
        self.send(uncompiled)
        return msgspec.json.decode(self._answers.get(), type=Compiled)

    def progress(self, text: str, *, is_often: bool = False) -> None:
        """Args: is_often: it is not sent if the last one was sent just now."""
        now_s = time.monotonic()
        with self._lock:
            if is_often and now_s < self._next_s:
                return
            self._next_s = now_s + REPORT_S
        self.send(Progress(text))

    def send(self, message: msgspec.Struct) -> None:
        with self._lock:
            self._control.sendall(import_wire.encode(message))

    def _end_with_the_daemon(self) -> None:
        while line := self._incoming.readline():
            self._answers.put(line)
        os._exit(1)


def main(control_fd: int) -> None:
    """One import."""
    tls = default_tls()
    with socket.socket(fileno=control_fd) as control:
        wire = Wire(control)
        if (asked := wire.request()) is not None:
            _answer(wire, tls, *asked)
    os._exit(0)  # threads of an import that failed may still wait for a registry


def _answer(wire: Wire, tls: ssl.SSLContext, request: ImportRequest, descriptors: Descriptors) -> None:
    try:
        wire.send(import_image(request, descriptors, wire, tls))
    except Unwanted:
        return
    except SockdError as error:
        wire.send(Failed(type(error).__name__, error.message))
    except OSError as error:
        kind = import_wire.STORAGE_FULL if error.errno in _NO_SPACE else type(error).__name__
        wire.send(Failed(kind, f"{error.strerror or error} ({traceback.format_exc(limit=-3)[-2000:]})"))
    except Exception as error:
        wire.send(Failed(type(error).__name__, traceback.format_exc()[-8000:]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
