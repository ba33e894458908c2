"""Roots over an image, read-only and writable: what they are made of, and that nothing of their making stays behind."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

import pytest

from sockd.isolation.roots import base as bases
from sockd.isolation.roots import image_base
from sockd.isolation.roots.assembly import Assembly, open_assembly
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.image_mounting import ImageMounting
from sockd.isolation.roots.program import Program
from sockd.isolation.roots.root import AttachedRoot, Root
from sockd.linux import mounts, syscalls, user_namespaces
from sockd.linux.erofs.mount_points import add_mount_points
from sockd.linux.ways import Ways
from tests.support.harness import Harness
from tests.support.images.image_files import Layers, directory, written
from tests.support.ledger import Ledger

pytestmark = pytest.mark.root

UID = 300_000_001
OTHERS = 33


@pytest.fixture(params=["detached", "attached"])
def ways(request: pytest.FixtureRequest) -> Ways:
    if request.param == "detached" and (reason := Ways.find().roots.reason):
        pytest.skip(f"this kernel cannot: {reason}")
    return Ways.find(None if request.param == "detached" else (6, 1))


@pytest.fixture
def mounting(ways: Ways, tmp_path: Path) -> Iterator[ImageMounting]:
    mounting = ImageMounting.open(ways, tmp_path / "mounted")
    assert mounting.try_in(tmp_path) == ""
    try:
        yield mounting
    finally:
        mounting.close()


@pytest.fixture
def image(harness: Harness, mounting: ImageMounting, tmp_path: Path) -> Iterator[ImageBase]:
    layers = Layers()
    tree = {"": directory(), "etc": directory(), "etc/conf": layers.file(b"of the image"), "srv": directory()}
    tree["srv"].uid = tree["srv"].gid = OTHERS
    add_mount_points(tree, directories=image_base.DIRECTORIES, files=image_base.FILES)
    file = tmp_path / "image.erofs"
    file.write_bytes(written(tree, layers))
    mounted = mounting.mount(str(file), harness.base)
    try:
        yield mounted
    finally:
        mounted.close()


@pytest.fixture
def assembly(harness: Harness, ways: Ways) -> Iterator[Assembly]:
    assembly = harness.call(lambda: open_assembly(ways, harness.base))
    try:
        yield assembly
    finally:
        assembly.close()


def over(harness: Harness, image: ImageBase, *, writable: bool = True) -> Program:
    """A program in an image."""
    limits = harness.limits(tmp_bytes=1 << 20, tmp_inodes=64)
    program = Program(None, b"", limits, init_timeout_s=1, timeout_s=1, log_bytes=0, writable_root=writable)
    program.base = image
    return program


@contextmanager
def made(assembly: Assembly, program: Program) -> Iterator[Root]:
    root = assembly.create(program.limits, program, uid=UID)
    try:
        yield root
    finally:
        root.close()


CALLS: list[tuple[ModuleType, str]] = [
    *((syscalls, name) for name in ("open_tree", "move_mount", "mount_setattr", "new_filesystem", "pivot_root")),
    *((os, name) for name in ("open", "mkdir", "chmod", "chown")),
    (user_namespaces, "new"),
]


@pytest.mark.parametrize("is_writable", [True, False], ids=["writable", "read-only"])
@pytest.mark.parametrize(("module", "call"), CALLS, ids=[name for _, name in CALLS])
def test_a_root_of_an_image_that_cannot_be_made_leaves_nothing(
    harness: Harness,
    image: ImageBase,
    ways: Ways,
    nth_call: Callable[..., Iterator[int]],
    module: ModuleType,
    call: str,
    is_writable: bool,
) -> None:
    original = getattr(module, call)
    program = over(harness, image, writable=is_writable)
    ledger, table = Ledger(), Path("/proc/self/mountinfo").read_text()
    for _ in nth_call(module, call, error=errno.EMFILE):
        with suppress(OSError):
            assembly = harness.call(lambda: open_assembly(ways, harness.base))
            try:
                with made(assembly, program):
                    pass
            finally:
                assembly.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, call, original)
            ledger.check()
            assert Path("/proc/self/mountinfo").read_text() == table


@pytest.mark.parametrize("is_writable", [True, False], ids=["writable", "read-only"])
def test_roots_files_are_the_sandboxs_and_others_stay(
    harness: Harness, image: ImageBase, assembly: Assembly, is_writable: bool
) -> None:
    with made(assembly, over(harness, image, writable=is_writable)) as root:
        status = {path: os.stat(path, dir_fd=root.fd) for path in (".", "etc", "etc/conf", "srv", "tmp")}
        assert [status[path].st_uid for path in (".", "etc", "etc/conf", "srv")] == [UID, UID, UID, OTHERS]
        assert [status[path].st_gid for path in (".", "etc", "etc/conf", "srv")] == [UID, UID, UID, OTHERS]
        assert [stat.S_IMODE(status[path].st_mode) for path in (".", "tmp")] == [0o755, 0o1777]


def test_root_and_tmp_are_one_file_system_of_the_limit(harness: Harness, image: ImageBase, assembly: Assembly) -> None:
    with (
        made(assembly, over(harness, image)) as root,
        mounts.owned(os.open("tmp", os.O_RDONLY, dir_fd=root.fd)) as tmp,
    ):
        sizes = [os.fstatvfs(fd) for fd in (root.fd, tmp)]
        assert [each.f_blocks * each.f_frsize for each in sizes] == [1 << 20] * 2
        assert [each.f_files for each in sizes] == [64] * 2
        with mounts.owned(os.open("etc/new", os.O_WRONLY | os.O_CREAT, dir_fd=root.fd)) as file:
            os.write(file, bytes(1 << 19))
        assert os.fstatvfs(tmp).f_bavail == os.fstatvfs(root.fd).f_bavail <= (1 << 19) // sizes[0].f_frsize


@pytest.mark.parametrize("is_writable", [True, False], ids=["writable", "read-only"])
def test_what_stands_over_the_image_stands_over_its_root(
    harness: Harness, image: ImageBase, assembly: Assembly, is_writable: bool
) -> None:
    usual, _ = image.at
    with made(assembly, over(harness, image, writable=is_writable)) as root:
        for path in image_base.FURNITURE:
            there, here = os.stat(path, dir_fd=usual), os.stat(path, dir_fd=root.fd)
            assert (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino), path
        assert stat.S_ISCHR(os.stat("dev/null", dir_fd=root.fd).st_mode)


@pytest.mark.parametrize("is_writable", [True, False], ids=["writable", "read-only"])
def test_nothing_but_the_root_is_in_its_namespace(
    harness: Harness, image: ImageBase, assembly: Assembly, is_writable: bool
) -> None:
    with made(assembly, over(harness, image, writable=is_writable)) as root:
        at = Path(f"/proc/self/fd/{root.fd}")
        assert os.path.samefile(at / "..", at) and os.path.samefile(at / "tmp" / "..", at)
        assert [os.listdir(at / path) for path in (bases.PROC, bases.PACKAGES, bases.TMP)] == [[], [], []]
        assert not {"upper", "work"} & set(os.listdir(at))
        if isinstance(root, AttachedRoot):
            with root._namespaces.entered(root._namespace):
                table = os.open("thread-self/mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=root._namespaces._proc)
            with open(table) as lines:
                points = sorted(line.split()[4] for line in lines)
            assert points == sorted(["/", "/tmp", *(f"/{path}" for path in image_base.FURNITURE)])


@pytest.mark.parametrize("ways", ["attached"], indirect=True)
def test_a_kernel_whose_images_take_no_id_map_shows_owners_as_they_are(
    harness: Harness, image: ImageBase, assembly: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mount_fd: int, user_namespace: int) -> None:
        raise OSError(errno.EINVAL, "mount_setattr: Invalid argument")

    monkeypatch.setattr(mounts, "map_owners", refuse)
    for _ in range(2):
        with made(assembly, over(harness, image, writable=False)) as root:
            assert os.stat("etc/conf", dir_fd=root.fd).st_uid == 0
    with pytest.raises(OSError, match="Invalid argument"), made(assembly, over(harness, image)):
        pass


def test_a_kernel_without_overlays_says_so(mounting: ImageMounting, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    assert mounting.why_no_writable_roots() == ""

    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENODEV, "fsopen: No such device")

    monkeypatch.setattr(mounts, "new_overlay", refuse)
    assert mounting.why_no_writable_roots() == "fsopen: No such device"
    ledger.check()
