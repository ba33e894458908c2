"""Mount points in an image: the directories and files over which a sandbox mounts its own.

An image is read-only, so that they have to be in it. Sandboxes of each image need the same ones.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable

from sockd.plain.errors import BadImage
from sockd.plain.file_tree import FileTree, Inode, resolve


def add_mount_points(
    tree: FileTree, *, directories: Iterable[str], files: Iterable[str], places: Iterable[str] = ()
) -> None:
    """Add what the tree lacks: root's, with the modification time 0, mode 0755 and 0644.

    A symbolic link, or a file where a directory is needed, is replaced: what it had would be hidden by the mount, and a link
    would have the mount elsewhere.

    The root may be entered by everybody afterwards: builders that copy a directory made by mktemp(1) leave 0700 there, with
    which a sandbox's user reaches no file at all.

    Args: places: directories that must be there, but nothing is mounted over them, so that a link to another directory stays.

    Raises: BadImage, for a directory above a mount point that is something else in the image."""
    for path in places:
        resolved = resolve(tree, path)
        if resolved is None or not stat.S_ISDIR(tree[resolved].mode):
            _add_directory(tree, path)
    for path in directories:
        _add_directory(tree, path)
    for path in files:
        _add_parents(tree, path)
        found = tree.get(path)
        if found is not None and stat.S_ISDIR(found.mode):
            raise BadImage(f"/{path} is a directory in the image; sandboxes have a file there")
        if found is None or not stat.S_ISREG(found.mode):
            tree[path] = Inode(mode=stat.S_IFREG | 0o644)
    tree[""].mode |= 0o555


def _add_directory(tree: FileTree, path: str) -> None:
    _add_parents(tree, path)
    if path not in tree or not stat.S_ISDIR(tree[path].mode):
        tree[path] = Inode(mode=stat.S_IFDIR | 0o755)


def _add_parents(tree: FileTree, path: str) -> None:
    parts = path.split("/")
    for depth in range(len(parts)):
        parent = "/".join(parts[:depth])
        found = tree.setdefault(parent, Inode(mode=stat.S_IFDIR | 0o755))
        if not stat.S_ISDIR(found.mode):
            raise BadImage(f"/{parent} is not a directory in the image; sandboxes have /{path} there")
