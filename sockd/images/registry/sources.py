"""Where a reference leads: to a registry, a layout or an archive."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack

from sockd.base.errors import BadImage, ImageTooLarge, NoSuchImage
from sockd.images.registry import docker_archive, layout
from sockd.images.registry.archive import Archive
from sockd.images.registry.credentials import Credentials
from sockd.images.registry.docker_archive import DockerArchiveSource
from sockd.images.registry.http import HttpClient
from sockd.images.registry.image import Platform, Source
from sockd.images.registry.layout import LayoutDirectory, LayoutSource
from sockd.images.registry.limits import Limits
from sockd.images.registry.reference import Reference
from sockd.images.registry.registry import RegistrySource


def open_source(
    reference: Reference,
    directory: str,
    *,
    path: str | int = "",
    platform: Platform = Platform(),  # noqa: B008  frozen
    limits: Limits = Limits(),  # noqa: B008  frozen
    credentials: Credentials | None = None,
    client: HttpClient | None = None,
) -> Source:
    """The source of an image. The caller closes it.

    Args:
        directory: for temporary files.
        path: where the reference's file or directory is for this process, or a descriptor of the file, which is closed.
    Raises: BadImage; OSError."""
    if reference.kind == "registry":
        return RegistrySource(reference, platform, limits, credentials, client)
    where = path or reference.path
    if not where:
        raise BadImage("the standard input is read by the command line, which sends it as an archive")
    try:
        is_directory = stat.S_ISDIR(os.stat(where).st_mode)
        if is_directory:
            if reference.kind not in ("oci", "path"):
                raise BadImage(f"{reference.path!r} is a directory, not an archive")
            return LayoutSource(LayoutDirectory.open(str(where)), reference.tag, platform, limits)
        if reference.kind == "oci":
            raise BadImage(f"{reference.path!r} is not a directory; archives are oci-archive:FILE")
        return _of_archive(reference, where, directory, platform, limits)
    except FileNotFoundError:
        raise NoSuchImage(f"there is no file {reference.path!r}") from None


def _of_archive(reference: Reference, where: str | int, directory: str, platform: Platform, limits: Limits) -> Source:
    with ExitStack() as stack:
        try:
            archive = Archive.open(where, directory, limits)
        except ImageTooLarge:
            raise
        except BadImage as error:
            raise BadImage(
                f"{reference.path or 'the standard input'} is not an archive that can be read: {error.message} "
                "(`docker save` writes one)"
            ) from error
        stack.callback(archive.close)
        is_layout = layout.MARK in archive and reference.kind != "docker-archive"
        if not is_layout and (docker_archive.MANIFEST not in archive or reference.kind == "oci-archive"):
            raise BadImage(
                f"{reference.path or 'the standard input'} is neither an OCI archive nor what `docker save` writes"
            )
        source: Source
        if is_layout:
            source = LayoutSource(archive, reference.tag, platform, limits)
        else:
            source = DockerArchiveSource(archive, reference.tag, platform, limits)
        stack.pop_all()
        return source
