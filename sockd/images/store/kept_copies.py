"""The copies of a manifest and a startup profile that lie next to an image's record, sealed as in the chunk store.

    images/<hex>/manifest       a copy of the manifest, after the root that it was read from
    images/<hex>/profile        a copy of the startup profile, from the first start with one, or from a deploy that found it

All functions block.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from io import FileIO
from pathlib import Path

from sockd.base.errors import Tampered
from sockd.images.chunks.catalog import Catalog
from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.profile import OpenProfile, Profile, seal_profile
from sockd.images.store.image_record import ImageRecord
from sockd.linux.memory_file import memory_file
from sockd.linux.regular_file import contents, opened

MANIFEST, PROFILE = "manifest", "profile"

_log = logging.getLogger(__name__)


def copy_of(catalog: Catalog, manifest: Manifest) -> bytes:
    """A manifest as it is kept."""
    return manifest.root.encode() + b"\n" + catalog.tenant_images.seal(manifest)


def keep_manifest(catalog: Catalog, manifest: Manifest, directory: Path) -> None:
    """Raises: OSError."""
    _write(directory / MANIFEST, copy_of(catalog, manifest))


def _keep_if_possible(catalog: Catalog, manifest: Manifest, directory: Path) -> None:
    """The image is served without a copy, too."""
    try:
        keep_manifest(catalog, manifest, directory)
    except OSError as error:
        _log.warning("the manifest of %s is not kept in %s: %s", manifest.image[:19], directory, error.strerror)


def keep_stored_profile(sealed: bytes, directory: Path) -> None:
    """Keep what the store has. No cache will have the chunks that its data replaces; a copy that is cut is refused."""
    with contextlib.suppress(OSError):
        _write(directory / PROFILE, sealed, sync=False)


def keep_profile(catalog: Catalog, manifest: Manifest, profile: Profile, directory: Path) -> None:
    """Store a new profile, and keep a copy. Raises: OSError; ChunkStoreFailed."""
    sealed = seal_profile(manifest, profile, catalog.tenant_images.key)
    _write(directory / PROFILE, sealed)
    catalog.set_profile(manifest.image, sealed)


def forget_profile(directory: Path) -> None:
    """Remove the copy: the next start takes the store's."""
    (directory / PROFILE).unlink(missing_ok=True)


def kept_manifest(catalog: Catalog, record: ImageRecord, directory: Path) -> Manifest | None:
    """The copy of the manifest; None: there is none that can be used."""
    with contextlib.suppress(OSError, Tampered):
        return opened_manifest(catalog, kept_copy(directory), record.stored_name)
    return None


def stored_manifest(catalog: Catalog, record: ImageRecord, directory: Path) -> Manifest:
    """The manifest of the store, which is copied. Raises: ChunkStoreFailed."""
    manifest = catalog.open(record.stored_name)
    _keep_if_possible(catalog, manifest, directory)
    return manifest


def renewed(catalog: Catalog, record: ImageRecord, directory: Path, imported: Path) -> Manifest | None:
    """Take over the copies that another import of the image has made, if they name other chunks of the store than those next to
    its record, which may be lost. Returns the manifest if it is in another root. Raises: ChunkStoreFailed, OSError."""
    new = opened_manifest(catalog, (imported / MANIFEST).read_bytes(), record.stored_name)
    old = None
    with contextlib.suppress(OSError, Tampered):
        old = opened_manifest(catalog, kept_copy(directory), record.stored_name)
    if old is not None and (old.root, old.chunks) == (new.root, new.chunks):
        return None
    for name in (PROFILE, MANIFEST):
        if (imported / name).exists():
            (imported / name).rename(directory / name)
    # Other chunks of one root are other bytes, which an image that is mounted cannot change to.
    return new if old is None or old.root != new.root else None


def kept_profile(catalog: Catalog, manifest: Manifest, directory: Path) -> OpenProfile | None:
    """The copy of the startup profile, the caller's. One that cannot be read, or that was not sealed for these bytes of the
    image, is not used."""
    found = _opened_profile(catalog, manifest, lambda: FileIO(opened(directory / PROFILE)))
    if found is not None:
        os.posix_fadvise(found.file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    return found


def stored_profile(catalog: Catalog, manifest: Manifest, directory: Path) -> OpenProfile | None:
    """As `kept_profile`, that of the store, which is copied. Raises: ChunkStoreFailed."""
    stored = catalog.profile(manifest)
    if stored is None:
        return None
    found = _opened_profile(catalog, manifest, lambda: FileIO(memory_file("profile", stored)), is_checked=True)
    if found is not None:
        keep_stored_profile(stored, directory)
    return found


def kept_copy(directory: Path) -> bytes:
    """Return the worker's copy of an image's manifest. Raises: OSError."""
    return contents(directory / MANIFEST)


def sealed_manifest(copy: bytes) -> bytes:
    """The manifest in a copy, as it is stored."""
    return copy.partition(b"\n")[2]


def opened_manifest(catalog: Catalog, copy: bytes, image: str) -> Manifest:
    """Raises: Tampered."""
    root = copy.partition(b"\n")[0].decode(errors="replace")
    return catalog.tenant_images.unseal(sealed_manifest(copy), root=root, image=image)


def _opened_profile(
    catalog: Catalog, manifest: Manifest, open_file: Callable[[], FileIO], *, is_checked: bool = False
) -> OpenProfile | None:
    """None: there is no file, or one that is not used. Args: is_checked: whether its startup data is authenticated now."""
    try:
        with ExitStack() as stack:
            found = OpenProfile.of(open_file(), manifest, catalog.tenant_images.key)
            stack.callback(found.close)
            if is_checked:
                found.check()
            stack.pop_all()
    except FileNotFoundError:
        return None
    except (Tampered, OSError) as error:
        _log.warning("the startup profile of %s is not used: %s", manifest.image[:19], error)
        return None
    return found


def _write(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace a file by rename."""
    new = path.with_suffix(".new")
    with open(new, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    new.rename(path)
