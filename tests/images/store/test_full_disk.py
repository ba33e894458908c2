"""What is said of a worker without space, and what of it must not become a part of an image."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd.base.errors import HostFailed, NoCapacity, SandboxFailed, StorageFull
from sockd.images.store.full_disk import UNUSED, is_full, passing, storage_full
from tests.support.small_disk import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, 16) as disk:
        yield disk


@pytest.mark.root
def test_the_cache_is_named_where_it_takes_the_disk(disk: Path) -> None:
    cache = disk / "l1"
    for size, other, is_named in (
        (9 << 20, 0, True),
        (4 << 20, 11 << 20, True),
        (4 << 20, 0, False),
        (1 << 20, 14 << 20, False),
    ):
        for name, count in (("l1", size), ("other", other)):
            (disk / name).write_bytes(bytes(count))
        message = storage_full(cache).message
        assert message.startswith("the disk of the state directory is full; ")
        if is_named:
            assert f"{cache}, the cache of images' chunks, takes {size >> 20} of its 16 MB" in message
            assert "images.cache_mb" in message and "sockd rm" not in message
        else:
            assert message == StorageFull(UNUSED).message and "sockd images gc" in message
    assert storage_full(None).message == storage_full(disk / "nothing").message == StorageFull(UNUSED).message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "full"), StorageFull),
        (OSError(errno.EDQUOT, "full"), StorageFull),
        (OSError(errno.EIO, "broken"), HostFailed),
        (OSError(errno.EMFILE, "many"), HostFailed),
        (NoCapacity("no memory for a sandbox"), NoCapacity),
        (OSError(errno.EINVAL, "no file system"), None),
        (SandboxFailed("exit status 3"), None),
    ],
)
def test_what_another_import_may_not_meet(error: SandboxFailed | OSError, kind: type[Exception] | None) -> None:
    found = passing(error)
    assert (None if found is None else type(found)) is kind
    assert is_full(error) == (kind is StorageFull)


def test_a_real_full_disk_is_one() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError) as caught:
        os.write(full.fileno(), b"x")
    assert is_full(caught.value)
