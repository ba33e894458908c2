"""Mounts as the base and the roots use them: sealed, without children, freed with their last user."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sockd.linux import mounts, syscalls
from sockd.linux.mounts import owned
from sockd.linux.syscalls import AT_FDCWD, MountAttr
from sockd.linux.ways import Ways
from tests.support.ledger import Ledger

pytestmark = pytest.mark.root

NODEV = 4
"""ST_NODEV, which the os module does not name."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs with `source` (a file, a mount below it) and `target`."""
    mounts.mount_tmpfs(str(tmp_path), size_bytes=8 << 20)
    try:
        for name in ("source/below", "target"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "source" / "file").write_text("content")
        mounts.mount_tmpfs(str(tmp_path / "source" / "below"), size_bytes=1 << 20)
        (tmp_path / "source" / "below" / "deep").write_text("deep")
        yield tmp_path
    finally:
        mounts.umount_tree(str(tmp_path))


@pytest.fixture
def late() -> None:
    """Detached trees can be mounted into and copied (Linux 6.15)."""
    if reason := Ways.find().roots.reason:
        pytest.skip(f"this kernel cannot: {reason}")


def refuses_writes(path: Path | str, *, dir_fd: int | None = None) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd))
    except OSError as error:
        return error.errno == errno.EROFS
    return False


def test_a_sealed_bind_is_read_only_and_has_none_of_the_mounts_below(place: Path) -> None:
    mounts.bind_sealed(str(place / "source"), str(place / "target"))
    assert (place / "target" / "file").read_text() == "content"
    assert os.listdir(place / "target" / "below") == []
    flags = os.statvfs(place / "target").f_flag
    assert flags & os.ST_RDONLY and flags & os.ST_NOSUID and flags & NODEV
    assert refuses_writes(place / "target" / "new")
    assert not refuses_writes(place / "source" / "new")


def test_a_bound_tree_has_all_that_is_below_as_it_is(place: Path) -> None:
    mounts.bind_tree(str(place / "source"), str(place / "target"))
    assert (place / "target" / "below" / "deep").read_text() == "deep"
    assert not refuses_writes(place / "target" / "below" / "new")


def test_sealing_concerns_one_mount_only(place: Path) -> None:
    mounts.seal(str(place))
    assert refuses_writes(place / "new")
    assert not refuses_writes(place / "source" / "below" / "new")


def test_a_mount_with_a_writer_cannot_be_sealed_but_replaced_by_a_sealed_copy(place: Path) -> None:
    with (place / "source" / "file").open("a"):  # as a child that was just forked holds it
        with pytest.raises(OSError) as refused:
            mounts.seal(str(place))
        assert refused.value.errno == errno.EBUSY
        mounts.replace_by_sealed(str(place))
        assert refuses_writes(place / "new")
        assert (place / "source" / "file").read_text() == "content"
    assert (place / "source" / "below" / "deep").read_text() == "deep"
    assert not refuses_writes(place / "source" / "below" / "new")
    flags = os.statvfs(place).f_flag
    assert flags & os.ST_RDONLY and flags & os.ST_NOSUID and flags & NODEV


def test_a_copy_that_cannot_be_sealed_is_closed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(syscalls, "mount_setattr", fail)
    with pytest.raises(OSError, match="injected"):
        mounts.sealed_copy(str(place / "source"))
    with pytest.raises(OSError, match="injected"):
        mounts.bind_sealed(str(place / "source"), str(place / "target"))
    ledger.check()


def test_a_sealed_copy_is_copied_into_any_number_of_trees(place: Path, late: None) -> None:
    code = mounts.sealed_copy(str(place / "source"))
    with owned(code):
        for _ in range(3):
            with owned(syscalls.open_tree(AT_FDCWD, str(place), recursive=False)) as root:
                mounts.attach_copy(code, root, "target")
                with owned(os.open("target/file", os.O_RDONLY, dir_fd=root)) as fd:
                    assert os.read(fd, 10) == b"content"
                assert refuses_writes("target/new", dir_fd=root)
    assert os.listdir(place / "target") == []


def test_a_private_tmp_is_everybodys_and_limited(place: Path, late: None) -> None:
    with owned(syscalls.open_tree(AT_FDCWD, str(place), recursive=False)) as root:
        mounts.attach_tmpfs(root, "target", size_bytes=1 << 20, inodes=10)
        assert os.stat("target", dir_fd=root).st_mode & 0o7777 == 0o1777
        with owned(os.open("target", os.O_RDONLY, dir_fd=root)) as tmp:
            size = os.fstatvfs(tmp)
            assert size.f_blocks * size.f_frsize == 1 << 20
            assert size.f_files == 10
            assert size.f_flag & os.ST_NOSUID and size.f_flag & NODEV
    assert os.listdir(place / "target") == []


ATTACH: dict[str, Callable[[int], None]] = {
    "attach_tmpfs": lambda root: mounts.attach_tmpfs(root, "nowhere", size_bytes=1 << 20, inodes=10),
    "attach_copy": lambda root: mounts.attach_copy(root, root, "nowhere"),
}


@pytest.mark.parametrize("name", ATTACH)
def test_what_cannot_be_attached_is_freed(place: Path, late: None, name: str) -> None:
    ledger = Ledger()
    with owned(syscalls.open_tree(AT_FDCWD, str(place), recursive=False)) as root:
        with pytest.raises(OSError) as caught:
            ATTACH[name](root)
        assert caught.value.errno == errno.ENOENT
    ledger.check()


def test_a_tree_lives_as_long_as_somebody_uses_it(place: Path) -> None:
    root = syscalls.open_tree(AT_FDCWD, str(place), recursive=True)
    with owned(os.open("source/below", os.O_RDONLY, dir_fd=root)) as inside:
        os.close(root)
        mounts.umount_tree(str(place / "source" / "below"))
        assert os.listdir(inside) == ["deep"]
    mounts.mount_tmpfs(str(place / "source" / "below"), size_bytes=1 << 20)


def test_a_whole_tree_is_unmounted_at_once(tmp_path: Path) -> None:
    mounts.mount_tmpfs(str(tmp_path), size_bytes=1 << 20)
    for name in ("a", "a/b", "a/b/c"):
        (tmp_path / name).mkdir()
        mounts.mount_tmpfs(str(tmp_path / name), size_bytes=1 << 20)
    mounts.umount_tree(str(tmp_path))
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_what_is_owned_is_closed_whatever_happens() -> None:
    with pytest.raises(ZeroDivisionError), owned(os.open("/dev/null", os.O_RDONLY)) as fd:
        raise ZeroDivisionError
    with pytest.raises(OSError):
        os.fstat(fd)


def test_attributes_have_names() -> None:
    assert MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV == mounts.SEALED
    assert MountAttr.NOSUID | MountAttr.NODEV == mounts.PRIVATE_TMP
