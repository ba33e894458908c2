"""Mount points that an image lacks are added to it."""

from __future__ import annotations

import stat

import pytest

from sockd.base.errors import BadImage
from sockd.base.file_tree import FileTree, Inode, resolve
from sockd.linux.erofs.mount_points import add_mount_points
from tests.support.images.image_files import Layers, directory, symlink, written

DIRECTORIES, FILES = ("var/task", "proc", "opt/sockd/sockd_zygote"), ("etc/hosts",)


def test_an_empty_image_gets_all_with_their_parents() -> None:
    tree: FileTree = {}
    add_mount_points(tree, directories=DIRECTORIES, files=FILES)
    made = ["", "var", "var/task", "proc", "opt", "opt/sockd", "opt/sockd/sockd_zygote", "etc"]
    assert sorted(tree) == sorted([*made, "etc/hosts"])
    assert all(tree[path].mode == stat.S_IFDIR | 0o755 for path in made)
    assert tree["etc/hosts"].mode == stat.S_IFREG | 0o644


def test_what_is_there_stays() -> None:
    hosts = Inode(mode=stat.S_IFREG | 0o600, size=3, layer=0)
    tree: FileTree = {"": directory(), "proc": directory(0o555), "etc": directory(0o700), "etc/hosts": hosts}
    add_mount_points(tree, directories=DIRECTORIES, files=FILES)
    assert (tree["proc"].mode, tree["etc"].mode) == (stat.S_IFDIR | 0o555, stat.S_IFDIR | 0o700)
    assert tree["etc/hosts"] is hosts


def test_a_link_at_a_mount_point_is_replaced() -> None:
    tree: FileTree = {"": directory(), "proc": symlink("/x"), "etc": directory(), "etc/hosts": symlink("../run/hosts")}
    add_mount_points(tree, directories=DIRECTORIES, files=FILES)
    assert stat.S_ISDIR(tree["proc"].mode) and stat.S_ISREG(tree["etc/hosts"].mode)


def test_a_link_above_a_mount_point_becomes_a_directory_with_the_same_files() -> None:
    layers = Layers()
    passwd, nested = layers.file(b"root:x:0:0::/:/bin/sh\n"), layers.file(b"a certificate")
    tree: FileTree = {
        "": directory(),
        "etc": symlink("nix/store/base/etc"),
        "nix": directory(),
        "nix/store": directory(),
    }
    tree |= {
        "nix/store/base": directory(),
        "nix/store/base/etc": directory(0o750),
        "nix/store/base/etc/ssl": directory(),
    }
    tree |= {"nix/store/base/etc/passwd": passwd, "nix/store/base/etc/ssl/cert": nested}
    tree |= {"nix/store/base/etc/mtab": symlink("../../proc/mounts")}
    add_mount_points(tree, directories=DIRECTORIES, files=["etc/hosts", "etc/passwd"])
    assert tree["etc"].mode == stat.S_IFDIR | 0o750
    assert tree["etc/passwd"] is passwd and tree["nix/store/base/etc/passwd"] is passwd
    assert tree["etc/ssl"].target == "/nix/store/base/etc/ssl" and resolve(tree, "etc/ssl/cert") is not None
    assert tree["etc/mtab"].target == "/nix/store/base/etc/mtab"
    assert stat.S_ISREG(tree["etc/hosts"].mode) and "nix/store/base/etc/hosts" not in tree
    written(tree, layers)


@pytest.mark.parametrize("path", ["var", "opt/sockd"])
@pytest.mark.parametrize("target", ["/elsewhere", "..", "/", "proc", "var", "opt/sockd"])
def test_a_link_above_a_mount_point_leads_no_mount_elsewhere(path: str, target: str) -> None:
    tree: FileTree = {"": directory(), "opt": directory(), path: symlink(target)}
    add_mount_points(tree, directories=DIRECTORIES, files=FILES)
    for each in (*DIRECTORIES, *FILES):
        parts = each.split("/")
        assert all(stat.S_ISDIR(tree["/".join(parts[:depth])].mode) for depth in range(len(parts)))


def test_a_file_above_a_mount_point_is_refused_with_advice() -> None:
    tree: FileTree = {"": directory(), "etc": Inode(mode=stat.S_IFREG | 0o644)}
    with pytest.raises(BadImage, match=r"/etc is a file in the image; .*: make /etc a directory in the Dockerfile"):
        add_mount_points(tree, directories=DIRECTORIES, files=FILES)


def test_a_link_to_passwd_becomes_the_file_that_it_leads_to() -> None:
    passwd = Layers().file(b"root:x:0:0::/:/bin/sh\n")
    tree: FileTree = {"": directory(), "etc": directory(), "etc/passwd": symlink("/srv/passwd"), "srv": directory()}
    tree |= {"srv/passwd": passwd}
    add_mount_points(tree, directories=(), files=["etc/passwd"])
    assert tree["etc/passwd"] is passwd


@pytest.mark.parametrize(
    ("target", "is_kept"), [("/srv/code", True), ("../srv/code", True), ("/srv/none", False), ("/f", False)]
)
def test_a_link_to_a_directory_stays_where_nothing_is_mounted(target: str, is_kept: bool) -> None:
    tree: FileTree = {
        "": directory(),
        "srv": directory(),
        "srv/code": directory(),
        "f": Inode(mode=stat.S_IFREG | 0o644),
    }
    tree |= {"var": directory(), "var/task": symlink(target)}
    add_mount_points(tree, directories=(), files=(), places=["var/task"])
    assert stat.S_ISLNK(tree["var/task"].mode) == is_kept
    assert is_kept or stat.S_ISDIR(tree["var/task"].mode)


def test_a_link_to_a_directory_above_a_place_stays() -> None:
    tree: FileTree = {"": directory(), "data": directory(), "data/task": directory(), "var": symlink("data")}
    add_mount_points(tree, directories=(), files=(), places=["var/task"])
    assert stat.S_ISLNK(tree["var"].mode)


def test_everybody_may_enter_the_root() -> None:
    tree: FileTree = {"": directory(0o700), "srv": directory(0o700)}
    add_mount_points(tree, directories=DIRECTORIES, files=FILES)
    assert (tree[""].mode, tree["srv"].mode) == (stat.S_IFDIR | 0o755, stat.S_IFDIR | 0o700)


def test_a_directory_in_place_of_a_file_is_refused() -> None:
    tree: FileTree = {"": directory(), "etc": directory(), "etc/hosts": directory()}
    with pytest.raises(BadImage, match="/etc/hosts is a directory"):
        add_mount_points(tree, directories=DIRECTORIES, files=FILES)
