"""Mount points in an image: the directories and files over which a sandbox mounts its own.

An image is read-only, so that they have to be in it. Sandboxes of each image need the same ones.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import replace

from sockd.base.errors import BadImage
from sockd.base.file_tree import FileTree, Inode, resolve


def add_mount_points(
    tree: FileTree, *, directories: Iterable[str], files: Iterable[str], places: Iterable[str] = ()
) -> None:
    """Add what the tree lacks: root's, with the modification time 0, mode 0755 and 0644.

    A symbolic link, or a file where a directory is needed, is replaced: what it had would be hidden by the mount, and a link
    would have the mount elsewhere. Above a mount point, a directory that has what the link leads to replaces the link. So
    images of Nix, whose /etc is a link, and those whose /opt is a link to /var/opt, are used as they are.

    The root may be entered by everybody afterwards: builders that copy a directory made by mktemp(1) leave 0700 there, with
    which a sandbox's user reaches no file at all.

    Args: places: directories that must be there, but nothing is mounted over them, so that a link to another directory stays.

    Raises: BadImage, for what is above a mount point and is neither a directory nor a link."""
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
            raise BadImage(
                f"/{path} is a directory in the image; sandboxes have a file there: remove it in the Dockerfile"
            )
        if found is None or not stat.S_ISREG(found.mode):
            tree[path] = _file_of(tree, path)
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
        if stat.S_ISLNK(found.mode):
            _replace_link(tree, parent)
        elif not stat.S_ISDIR(found.mode):
            raise BadImage(
                f"/{parent} is a file in the image; sandboxes have /{path} there: make /{parent} a directory in the Dockerfile"
            )


def _replace_link(tree: FileTree, path: str) -> None:
    """Have a directory instead of a link: with hard links of the files where the link led, and links to all else there.

    What leads nowhere, or to a file, becomes an empty directory."""
    target = resolve(tree, path)
    found = tree[target] if target is not None else None
    directory = Inode(mode=stat.S_IFDIR | 0o755)
    entries = {}
    if found is not None and stat.S_ISDIR(found.mode):
        directory = replace(found, xattrs=dict(found.xattrs))
        below = f"{target}/" if target else ""
        for each, inode in tree.items():
            name = each.removeprefix(below)
            if name and each.startswith(below) and "/" not in name:
                entries[name] = inode if stat.S_ISREG(inode.mode) else _link_to(each)
    tree[path] = directory
    tree.update({f"{path}/{name}": inode for name, inode in entries.items()})


def _link_to(path: str) -> Inode:
    return Inode(mode=stat.S_IFLNK | 0o777, target=f"/{path}")


def _file_of(tree: FileTree, path: str) -> Inode:
    """The file that a link leads to, as the sandbox's passwd and group begin with the image's; else an empty one."""
    target = resolve(tree, path) if path in tree else None
    found = tree[target] if target is not None else None
    return found if found is not None and stat.S_ISREG(found.mode) else Inode(mode=stat.S_IFREG | 0o644)
