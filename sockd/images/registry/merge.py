"""The layers of an image, one over the other, as one tree of files. Touches no file system: the tree is data.

Within a layer, whiteouts come first, wherever they are in the tar file: they apply to lower layers only ("Whiteout files MUST
only apply to resources in lower/parent layers", OCI Image Layer Filesystem Changeset). Then the members in their order, each
replacing what has its path; only a directory over a directory leaves the children.

In docker and containerd a layer is extracted by itself and laid over the others. So a directory that it implies hides a lower
layer's link of that name, and a member below a link of its own layer is where that leads: `lib -> usr/lib`, then `lib/x.so`.
Links are followed as by a process whose root is the image's: `..` and absolute targets never leave it.

Left out, each with a note: device nodes (sandboxes are nodev), set-user-ID and set-group-ID bits (nosuid), extended
attributes other than `user.`, among them file capabilities.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass

from sockd.base.errors import BadImage, ImageTooLarge
from sockd.base.file_tree import MOST_LINKS, FileTree, Inode
from sockd.images.registry.limits import NAME_BYTES, Limits
from sockd.images.registry.tar_members import Member, members
from sockd.images.registry.unpacked import UnpackedLayers

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_RESERVED = ".wh..wh."
"""What AUFS kept in a directory for itself; not files of an image."""
_KEPT_XATTRS = "user."
UNREADABLE = "files that functions cannot read, as neither USER nor everybody may"
_OF_SYSTEM = ("etc/", "root/", "usr/", "var/cache/", "var/lib/", "var/log/", "var/spool/")
"""Where distributions have such files, which functions do not miss: /etc/shadow, logs of apt."""
_MOST_NAMED = 3
"""Paths that a note names."""


@dataclass(frozen=True, slots=True)
class Merged:
    """All files of an image, and what was left out of it, for people."""

    tree: FileTree
    notes: tuple[str, ...]


class _Node:
    """A path. Links of each other are nodes that share an inode."""

    __slots__ = ("children", "inode", "layer")

    def __init__(self, inode: Inode, layer: int) -> None:
        self.inode = inode
        self.children: dict[str, _Node] = {}
        """The entries of a directory, by name."""
        self.layer = layer
        """Which layer made or changed it last."""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.inode.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.inode.mode)


def apply_layers(layers: UnpackedLayers, limits: Limits) -> Merged:
    """Raises: BadImage, ImageTooLarge; the message names layer and member. OSError of the temporary files."""
    merging = _Merging(layers, limits)
    for number in range(layers.count):
        try:
            merging.apply(number)
        except (BadImage, ImageTooLarge) as error:
            raise type(error)(f"{layers.labels[number]}: {error.message}") from None
    return merging.result()


class _Merging:
    def __init__(self, layers: UnpackedLayers, limits: Limits) -> None:
        self._layers = layers
        self._limits = limits
        self._root = _Node(_implied_directory(), -1)
        self._files = 0
        self._metadata_bytes = 0
        self._sparse_bytes = 0
        self._left_out: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()

    def apply(self, layer: int) -> None:
        kept: list[tuple[list[str], Member]] = []
        size_bytes = self._layers.size_bytes(layer)
        for member in members(
            lambda offset, size: self._layers.read_up_to(layer, offset, size), size_bytes, self._limits
        ):
            self._count(member)
            parts = path_parts(member.name, self._limits)
            if parts and parts[-1].startswith(WHITEOUT):
                self._white_out(parts, member)
            else:
                kept.append((parts, member))
        for parts, member in kept:
            self._add(layer, parts, member)

    def result(self) -> Merged:
        tree: FileTree = {}
        pending = [("", self._root)]
        while pending:
            path, node = pending.pop()
            tree[path] = node.inode
            prefix = f"{path}/" if path else ""
            pending.extend((prefix + name, node.children[name]) for name in sorted(node.children, reverse=True))
        notes = [_note(what, self._counts[what], paths) for what, paths in sorted(self._left_out.items())]
        return Merged(tree, tuple(notes))

    def _count(self, member: Member) -> None:
        """One file more, of a member or implied by one. Raises: ImageTooLarge."""
        self._files += 1
        self._metadata_bytes += len(member.name) + len(member.target) + sum(map(len, member.xattrs.values()))
        if self._files > self._limits.max_files:
            raise ImageTooLarge(f"the image has more than {self._limits.max_files} files (images.max_files)")
        if self._metadata_bytes > self._limits.max_metadata_bytes:
            raise ImageTooLarge(f"names and attributes of files exceed {self._limits.max_metadata_bytes >> 20} MB")

    # ---- whiteouts ----

    def _white_out(self, parts: list[str], member: Member) -> None:
        *parents, name = parts
        hidden = name.removeprefix(WHITEOUT)
        if hidden in ("", ".", ".."):
            raise BadImage(f"the whiteout {_shown(member.name)} names no file")
        directory = self._root
        for part in parents:
            child = directory.children.get(part)
            if child is None or not child.is_directory:
                return  # no lower layer has the file
            directory = child
        if name == OPAQUE:
            directory.children.clear()
        elif not name.startswith(_RESERVED):
            directory.children.pop(hidden, None)

    # ---- members ----

    def _add(self, layer: int, parts: list[str], member: Member) -> None:
        if not parts:
            if not stat.S_ISDIR(member.mode):
                raise BadImage("a member that is no directory has the path of the root")
            self._root.inode = self._inode(layer, member)
            return
        *parents, name = parts
        directory = self._parent(layer, parents, member)
        if stat.S_ISCHR(member.mode) or stat.S_ISBLK(member.mode):
            self._leave_out("device nodes are left out", member)
            directory.children.pop(name, None)
            return
        inode = self._linked(member) if member.mode == 0 else self._inode(layer, member)
        existing = directory.children.get(name)
        if existing is not None and existing.inode is inode:
            return  # a link to itself
        node = _Node(inode, layer)
        if existing is not None and existing.is_directory and node.is_directory:
            node.children = existing.children
        directory.children[name] = node

    def _parent(self, layer: int, parents: list[str], member: Member) -> _Node:
        """The directory with a member: links of its own layer are followed, and what is missing is made."""
        way, pending, links = [self._root], parents[::-1], 0
        while pending:
            part = pending.pop()
            if part == "..":
                del way[max(1, len(way) - 1) :]  # the root is its own parent
                continue
            child = way[-1].children.get(part)
            if child is not None and child.is_link and child.layer == layer:
                links += 1
                self._follow(child.inode.target, way, pending)
                self._check_way(member, links, len(way) + len(pending))
                continue
            if child is None or not child.is_directory:
                if child is not None and child.layer == layer:
                    raise BadImage(f"the member {_shown(member.name)} is below a file of the same layer")
                self._count(member)
                child = way[-1].children[part] = _Node(_implied_directory(), layer)
            way.append(child)
        return way[-1]

    def _follow(self, target: str, way: list[_Node], pending: list[str]) -> None:
        """Go on where a link leads.

        Args: way: the directories from the root to the link; pending: what follows, the last first. Raises: BadImage."""
        if target.startswith("/"):
            del way[1:]
        parts = [part for part in target.split("/") if part not in ("", ".")]
        if "\0" in target or any(len(os.fsencode(part)) > NAME_BYTES for part in parts):
            raise BadImage(f"a symbolic link leads to {_shown(target)}, which no file system holds")
        pending += reversed(parts)

    def _check_way(self, member: Member, links: int, depth: int) -> None:
        if links > MOST_LINKS:
            raise BadImage(f"the member {_shown(member.name)} is below more than {MOST_LINKS} symbolic links")
        if depth > self._limits.max_depth:
            raise ImageTooLarge(
                f"links lead {_shown(member.name)} through more than {self._limits.max_depth} directories"
            )

    def _inode(self, layer: int, member: Member) -> Inode:
        inode = Inode(
            mode=self._mode(member),
            uid=member.uid,
            gid=member.gid,
            mtime_s=member.mtime_s,
            mtime_ns=member.mtime_ns,
            xattrs=self._xattrs(member),
        )
        if stat.S_ISLNK(member.mode):
            inode.target = self._target(member)
        elif stat.S_ISREG(member.mode) and member.size:
            inode.size, inode.layer, inode.offset = member.size, layer, member.offset
            if member.parts is not None:
                self._sparse_bytes += member.size
                if self._sparse_bytes > self._limits.max_bytes:
                    raise ImageTooLarge(f"the sparse file {_shown(member.name)} makes the image too large")
                inode.layer, inode.offset = self._layers.expand(layer, member.offset, member.parts, member.size)
        return inode

    def _linked(self, member: Member) -> Inode:
        """What a hard link is a link to, of this or of a lower layer."""
        node = self._found(member)
        if node is None:
            raise BadImage(f"{_shown(member.name)} is a hard link to {_shown(member.target)}, which is not there")
        if node.is_directory:
            raise BadImage(f"{_shown(member.name)} is a hard link to the directory {_shown(member.target)}")
        return node.inode

    def _found(self, member: Member) -> _Node | None:
        """The node that a hard link names: links above it are followed, a link at its end is what it names."""
        way, links = [self._root], 0
        pending = path_parts(member.target, self._limits)[::-1]
        while pending:
            part = pending.pop()
            if part == "..":
                del way[max(1, len(way) - 1) :]
                continue
            child = way[-1].children.get(part)
            if child is None:
                return None
            if child.is_link and pending:
                links += 1
                self._follow(child.inode.target, way, pending)
                self._check_way(member, links, len(way) + len(pending))
                continue
            way.append(child)
        return way[-1]

    def _mode(self, member: Member) -> int:
        unwanted = stat.S_ISUID if stat.S_ISDIR(member.mode) else stat.S_ISUID | stat.S_ISGID
        if member.mode & unwanted:
            self._leave_out("set-user-ID and set-group-ID bits are cleared", member)
        return member.mode & ~unwanted

    def _target(self, member: Member) -> str:
        size = len(os.fsencode(member.target))
        if not 0 < size <= self._limits.max_path_bytes:
            raise BadImage(f"the symbolic link {_shown(member.name)} has a target of {size} bytes")
        return member.target

    def _xattrs(self, member: Member) -> dict[str, bytes]:
        kept = {name: value for name, value in member.xattrs.items() if name.startswith(_KEPT_XATTRS)}
        for name, value in kept.items():
            if len(os.fsencode(name)) > NAME_BYTES or "\0" in name or len(value) > 1 << 16:
                raise BadImage(f"{_shown(member.name)} has an extended attribute that no file system holds")
        for name in member.xattrs.keys() - kept.keys():
            self._leave_out(f"the extended attribute {name[:60]} is left out", member)
        return kept

    def _leave_out(self, what: str, member: Member) -> None:
        paths = self._left_out.setdefault(what, [])
        if len(self._left_out) > 100:  # a hostile image has as many names of attributes as it likes
            del self._left_out[what]
            return
        self._counts[what] += 1
        if len(paths) < _MOST_NAMED:
            paths.append(_shown(member.name))


def unreadable_note(tree: FileTree, uid: int, gid: int) -> str:
    """The files of an image that its user, whom functions run as, may not read; a line for people, empty if there are none."""
    closed = [
        path
        for path, inode in tree.items()
        if stat.S_ISREG(inode.mode) and not may_read(inode, uid, gid) and not path.startswith(_OF_SYSTEM)
    ]
    return _note(UNREADABLE, len(closed), [_shown(path) for path in closed[:_MOST_NAMED]]) if closed else ""


def may_read(inode: Inode, uid: int, gid: int) -> bool:
    """Whether a user without capabilities may read a file: the first that he is of owner, group and others decides."""
    if inode.uid == uid:
        return bool(inode.mode & stat.S_IRUSR)
    return bool(inode.mode & (stat.S_IRGRP if inode.gid == gid else stat.S_IROTH))


def may_enter(inode: Inode, uid: int, gid: int) -> bool:
    """As `may_read`, of what is below a directory."""
    if inode.uid == uid:
        return bool(inode.mode & stat.S_IXUSR)
    return bool(inode.mode & (stat.S_IXGRP if inode.gid == gid else stat.S_IXOTH))


def _note(what: str, count: int, paths: list[str]) -> str:
    return f"{what}: {count} ({', '.join(paths)}{', ...' if count > len(paths) else ''})"


def path_parts(name: str, limits: Limits) -> list[str]:
    """The parts of a member's path below the root; `/x`, `./x` and `x/` are `x`, and none is the root.

    Raises: BadImage for `..`, which nothing needs; ImageTooLarge."""
    size = len(name) if name.isascii() else len(os.fsencode(name))
    if size > limits.max_path_bytes:
        raise ImageTooLarge(f"a path has {size} bytes; the limit is {limits.max_path_bytes}: {_shown(name)}")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadImage(f"the path {_shown(name)} leaves its directory ('..')")
    if len(parts) > limits.max_depth:
        raise ImageTooLarge(f"a path has {len(parts)} parts; the limit is {limits.max_depth}: {_shown(name)}")
    if "\0" in name or (size > NAME_BYTES and any(len(os.fsencode(part)) > NAME_BYTES for part in parts)):
        raise BadImage(f"the path {_shown(name)} has a part that no file system holds")
    return parts


def _implied_directory() -> Inode:
    """Return the inode of a directory that no member describes: the same on every machine."""
    return Inode(mode=stat.S_IFDIR | 0o755)


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 200 else f"...{name[-200:]}")
