"""System calls without a name in Python: each does what it says, and a failure names call, object and errno."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd.linux import syscalls
from sockd.linux.mounts import owned
from sockd.linux.syscalls import AT_FDCWD, MountAttr, MountFlag
from sockd.linux.ways import Ways

pytestmark = pytest.mark.root


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs with a file in it, mounted."""
    syscalls.mount("tmpfs", str(tmp_path), "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "size=1m,mode=0755")
    try:
        (tmp_path / "file").write_text("content")
        (tmp_path / "directory").mkdir()
        yield tmp_path
    finally:
        syscalls.umount(str(tmp_path))


@pytest.fixture
def late() -> None:
    """Detached trees can be mounted into and copied (Linux 6.15)."""
    if reason := Ways.find().roots.reason:
        pytest.skip(f"this kernel cannot: {reason}")


def names(tree: int) -> list[str]:
    """What is in a detached mount; its fd is only a place (O_PATH)."""
    with owned(os.open(".", os.O_RDONLY, dir_fd=tree)) as fd:
        return sorted(os.listdir(fd))


def is_mounted(path: Path) -> bool:
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def test_mount_and_umount(tmp_path: Path) -> None:
    syscalls.mount("tmpfs", str(tmp_path), "tmpfs", MountFlag.NONE, "size=64k")
    assert is_mounted(tmp_path)
    assert os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize == 64 << 10
    syscalls.umount(str(tmp_path), detach=False)
    assert not is_mounted(tmp_path)


def test_a_busy_mount_is_only_detached(tmpfs: Path) -> None:
    with owned(os.open(tmpfs / "file", os.O_RDONLY)) as fd:
        with pytest.raises(OSError, match="umount2") as caught:
            syscalls.umount(str(tmpfs), detach=False)
        assert caught.value.errno == errno.EBUSY
        syscalls.umount(str(tmpfs))
        assert not is_mounted(tmpfs)
        assert os.read(fd, 10) == b"content"
    syscalls.mount("tmpfs", str(tmpfs), "tmpfs", MountFlag.NONE)  # for the fixture to unmount


def test_a_clone_of_a_tree_is_in_no_mount_table(tmpfs: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    with owned(syscalls.open_tree(AT_FDCWD, str(tmpfs), recursive=True)) as tree:
        assert Path("/proc/self/mountinfo").read_text() == before
        assert not os.get_inheritable(tree)
        with owned(os.open("file", os.O_RDONLY, dir_fd=tree)) as fd:
            assert os.read(fd, 10) == b"content"


def test_a_detached_tree_can_be_copied(tmpfs: Path, late: None) -> None:
    tree = syscalls.open_tree(AT_FDCWD, str(tmpfs), recursive=True)
    with owned(tree), owned(syscalls.open_tree(tree, "", recursive=False)) as copy:
        assert names(copy) == names(tree) == ["directory", "file"]


def test_attributes_are_of_the_mount_and_not_of_the_file_system(tmpfs: Path) -> None:
    with owned(syscalls.open_tree(AT_FDCWD, str(tmpfs), recursive=False)) as tree:
        syscalls.mount_setattr(tree, MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV, recursive=False)
        with pytest.raises(OSError) as caught:
            os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=tree)
        assert caught.value.errno == errno.EROFS
        (tmpfs / "through the original").write_text("fine")
        assert "through the original" in names(tree)


def test_move_mount_attaches_a_detached_mount(tmpfs: Path) -> None:
    with owned(syscalls.new_filesystem("tmpfs", {"size": "64k", "mode": "0700"}, MountAttr.NOSUID)) as new:
        os.mkdir("inside", dir_fd=new)
        syscalls.move_mount(new, AT_FDCWD, str(tmpfs / "directory"))
    assert os.listdir(tmpfs / "directory") == ["inside"]
    assert (tmpfs / "directory").stat().st_mode & 0o777 == 0o700
    assert os.statvfs(tmpfs / "directory").f_flag & os.ST_NOSUID


def test_a_mount_moves_into_a_detached_tree(tmpfs: Path, late: None) -> None:
    tree = syscalls.open_tree(AT_FDCWD, str(tmpfs), recursive=True)
    with owned(tree), owned(syscalls.new_filesystem("tmpfs", {}, MountAttr.NONE)) as new:
        os.mkdir("inside", dir_fd=new)
        syscalls.move_mount(new, tree, "directory")
        with owned(os.open("directory", os.O_RDONLY, dir_fd=tree)) as directory:
            assert os.listdir(directory) == ["inside"]
    assert os.listdir(tmpfs / "directory") == []


def fail_open_tree() -> None:
    syscalls.open_tree(AT_FDCWD, "/no/such/directory", recursive=False)


def fail_new_filesystem() -> None:
    syscalls.new_filesystem("nofs", {}, MountAttr.NONE)


def fail_option() -> None:
    syscalls.new_filesystem("tmpfs", {"size": "nonsense"}, MountAttr.NONE)


def fail_fd_option() -> None:
    syscalls.new_filesystem("tmpfs", {"size": 0}, MountAttr.NONE)


def fail_move_mount() -> None:
    with owned(os.open("/", os.O_RDONLY)) as fd:
        syscalls.move_mount(fd, AT_FDCWD, "/no/such/directory")


def fail_setattr() -> None:
    with owned(os.open("/dev/null", os.O_RDONLY)) as fd:
        syscalls.mount_setattr(fd, MountAttr.RDONLY, recursive=False)


def fail_mount() -> None:
    syscalls.mount("none", "/no/such/directory", "tmpfs", MountFlag.RDONLY | MountFlag.NOSUID)


def fail_umount() -> None:
    syscalls.umount("/no/such/directory")


def fail_pivot_root() -> None:
    syscalls.pivot_root("/no/such/directory", "/no/such/directory")


def fail_unshare() -> None:
    syscalls.unshare(0x1)


def fail_prctl() -> None:
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 10_000)


@pytest.mark.parametrize(
    ("call", "number", "words"),
    [
        (fail_open_tree, errno.ENOENT, ["open_tree", "/no/such/directory"]),
        (fail_new_filesystem, errno.ENODEV, ["fsopen", "nofs"]),
        (fail_option, errno.EINVAL, ["fsconfig", "size"]),
        (fail_fd_option, errno.EINVAL, ["fsconfig", "size"]),
        (fail_move_mount, errno.ENOENT, ["move_mount", "/no/such/directory"]),
        (fail_setattr, errno.EINVAL, ["mount_setattr"]),
        (fail_mount, errno.ENOENT, ["mount(<MountFlag.RDONLY|NOSUID: 3>)", "/no/such/directory"]),
        (fail_umount, errno.ENOENT, ["umount2", "/no/such/directory"]),
        (fail_pivot_root, errno.ENOENT, ["pivot_root", "/no/such/directory"]),
        (fail_unshare, errno.EINVAL, ["unshare(0x1)"]),
        (fail_prctl, errno.EINVAL, ["prctl"]),
    ],
)
def test_a_failure_says_what_failed_on_what(call: object, number: int, words: list[str]) -> None:
    with pytest.raises(OSError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.errno == number
    for word in words:
        assert word in str(caught.value)


def test_a_context_that_cannot_be_made_leaves_no_descriptor() -> None:
    """The fd of fsopen is closed whichever of the calls after it fails; the ledger looks."""
    for options in ({"size": "nonsense"}, {"nonsense": "1"}, {"size": 5}):
        with pytest.raises(OSError):
            syscalls.new_filesystem("tmpfs", options, MountAttr.NONE)


def test_a_short_time_slice_is_the_callers_own() -> None:
    code = (
        "import os\nfrom sockd.linux import syscalls\nusual = syscalls.time_slice_ns()\n"
        "syscalls.set_time_slice(100_000)\nprint(syscalls.time_slice_ns(), usual, flush=True)\n"
        "if os.fork() == 0:\n    print(syscalls.time_slice_ns(), usual, flush=True)\n    os._exit(0)\nos.wait()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (own, usual), (childs, _) = (map(int, line.split()) for line in done.stdout.splitlines())
    if not usual:
        pytest.skip("this kernel tells no time slices")
    assert own == 100_000
    assert childs == usual
