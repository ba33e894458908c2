"""What a deploy must know of an image's files: which Python interpreters are there, and whether its command is.

Found in the tree of files before it is written, by the names of files and the first bytes of programs; nothing of the image is
run. An image may lie about itself: these facts choose how a function is started, and no protection rests on them.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from sockd.base.file_tree import FileTree, Inode, LayerData, resolve
from sockd.images.registry.image import ImageConfig
from sockd.images.registry.merge import may_enter
from sockd.images.store.image_user import owner_of
from sockd.isolation.roots.owner_maps import ROOT, Owner

Libc = Literal["glibc", "musl", "static", "unknown"]

WEB_ADAPTER = "opt/extensions/lambda-adapter"
"""Where images have it, as its documentation says."""
MOST_PYTHONS = 32
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INTERPRETER = re.compile(r"python(?:3(?:\.\d{1,2})?)?")
_LIBRARY = re.compile(r"python(3\.\d{1,2})")
SITES = ("site-packages", "dist-packages")
_PROGRAM_START_BYTES = 4096
_MOST_NAMES_BYTES = 1 << 20
"""The most bytes of /etc/passwd and /etc/group that are read."""
_ELF = b"\x7fELF"


class Python(msgspec.Struct, frozen=True, kw_only=True):
    """One interpreter."""

    path: str
    """As it is to be started: of a virtual environment, the link in its bin directory."""
    program: str
    """Where links lead to."""
    version: str
    """As "3.12"."""
    libc: Libc
    prefix: str
    """The prefix of the interpreter, whose standard library is in PREFIX/lib/python3.12."""
    sites: tuple[str, ...]
    """Directories that packages are in, those of the virtual environment first."""
    awslambdaric: str = ""
    """The directory that AWS's runtime interface client is in; empty: it is in none."""
    is_virtual: bool = False
    has_bytecode: bool = False
    """Whether the standard library has .pyc files for it."""


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an image contains. Paths are absolute."""

    pythons: tuple[Python, ...] = ()
    """In the order of the image's PATH, then those of virtual environments elsewhere."""
    command: str = ""
    """The file that the image's ENTRYPOINT or CMD starts; empty: it has none, or there is no such program."""
    has_web_adapter: bool = False
    """Whether AWS's Lambda Web Adapter is in it as an extension: its program is a web server."""
    files: int = 0
    """Paths of all kinds."""
    size_bytes: int = 0
    """The bytes of all regular files, each counted once."""
    owner: tuple[int, int] = ROOT
    """User and group whose files are the sandboxes' own: USER, or root."""
    has_working_dir: bool = True
    """Whether WORKDIR is a directory of the image."""
    closed: str = ""
    """The first directory on the way to the command or to WORKDIR that the owner may not enter."""
    has_user: bool = True
    """Whether the image's USER is in its /etc/passwd, and its group in /etc/group."""

    @property
    def has_awslambdaric(self) -> bool:
        return any(python.awslambdaric for python in self.pythons)


def facts_of(tree: FileTree, data: LayerData, config: ImageConfig) -> ImageFacts:
    """Raises: OSError of the layers' files."""
    view = _View(tree, data)
    path = search_path(config.env)
    command = [*config.entrypoint, *config.cmd][:1]
    passwd, group = (
        view.start(f"/etc/{name}", _MOST_NAMES_BYTES).decode(errors="replace") for name in ("passwd", "group")
    )
    owner = owner_of(config.user, passwd, group)
    started = view.program(command[0], path, config.working_dir) if command else ""
    ways = [each for each in (started, posixpath.join("/", config.working_dir, "_")) if each]
    regular = {id(inode): inode.size for inode in tree.values() if stat.S_ISREG(inode.mode)}
    return ImageFacts(
        pythons=tuple(_pythons(view, path)),
        command=started,
        has_web_adapter=WEB_ADAPTER in tree,
        files=len(tree),
        size_bytes=sum(regular.values()),
        owner=owner or ROOT,
        has_working_dir=view.is_directory(posixpath.join("/", config.working_dir)),
        closed=next((each for way in ways if (each := view.closed_above(way, owner or ROOT))), ""),
        has_user=owner is not None,
    )


def search_path(env: Sequence[str]) -> list[str]:
    """The directories of PATH."""
    values = dict(each.partition("=")[::2] for each in env)
    return [each for each in values.get("PATH", DEFAULT_PATH).split(":") if each.startswith("/")]


class _View:
    """A tree of files as paths lead through it."""

    def __init__(self, tree: FileTree, data: LayerData) -> None:
        self._tree = tree
        self._data = data

    def resolve(self, path: str) -> str | None:
        """Where a path leads, relative to the root; None: nowhere."""
        return resolve(self._tree, path)

    def inode(self, path: str) -> Inode | None:
        found = self.resolve(path)
        return None if found is None else self._tree[found]

    def is_directory(self, path: str) -> bool:
        inode = self.inode(path)
        return inode is not None and stat.S_ISDIR(inode.mode)

    def is_file(self, path: str) -> bool:
        inode = self.inode(path)
        return inode is not None and stat.S_ISREG(inode.mode)

    def is_program(self, path: str) -> bool:
        inode = self.inode(path)
        return inode is not None and stat.S_ISREG(inode.mode) and bool(inode.mode & 0o111)

    def program(self, name: str, path: Sequence[str], working_dir: str) -> str:
        """What execvp(3) would start, absolute; empty: nothing."""
        if "/" in name:
            places = [posixpath.join("/", working_dir, name)]
        else:
            places = [posixpath.join(directory, name) for directory in path]
        return next((posixpath.normpath(place) for place in places if self.is_program(place)), "")

    def closed_above(self, path: str, owner: Owner) -> str:
        """The first directory on the way to a path that the owner may not enter; empty: there is none."""
        parts = path.strip("/").split("/")[:-1]
        for depth in range(len(parts) + 1):
            inode = self.inode("/".join(parts[:depth]))
            if inode is not None and stat.S_ISDIR(inode.mode) and not may_enter(inode, *owner) and depth:
                return "/" + "/".join(parts[:depth])
        return ""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted. Walks the whole tree once for all directories."""
        found = self.resolve(path)
        return [] if found is None else self._children().get(found, [])

    def start(self, path: str, most_bytes: int) -> bytes:
        """The first bytes of a file; none of what is not one."""
        inode = self.inode(path)
        if inode is None or not stat.S_ISREG(inode.mode) or not inode.size:
            return b""
        return self._data.read(inode.layer, inode.offset, min(inode.size, most_bytes))

    def paths(self) -> Iterator[str]:
        return iter(self._tree)

    _listed: dict[str, list[str]] | None = None

    def _children(self) -> dict[str, list[str]]:
        if self._listed is None:
            self._listed = {}
            for path in sorted(self._tree):
                if path:
                    directory, _, name = path.rpartition("/")
                    self._listed.setdefault(directory, []).append(name)
        return self._listed


def _pythons(view: _View, path: Sequence[str]) -> Iterator[Python]:
    seen: set[tuple[str, str]] = set()
    virtual = [f"/{posixpath.dirname(each)}/bin" for each in view.paths() if posixpath.basename(each) == "pyvenv.cfg"]
    for directory in dict.fromkeys([*path, *DEFAULT_PATH.split(":"), "/var/lang/bin", *virtual]):
        for name in view.names(directory):
            if len(seen) >= MOST_PYTHONS:
                return
            if not _INTERPRETER.fullmatch(name) or not view.is_program(f"{directory}/{name}"):
                continue
            python = _python(view, directory, name)
            if python is not None and (python.program, python.sites[0] if python.sites else "") not in seen:
                seen.add((python.program, python.sites[0] if python.sites else ""))
                yield python


def _python(view: _View, directory: str, name: str) -> Python | None:
    """None: it has no standard library, as a wrapper has none."""
    program = f"/{view.resolve(f'{directory}/{name}')}"
    environment = posixpath.dirname(directory)
    is_virtual = view.is_file(f"{environment}/pyvenv.cfg")
    prefix = posixpath.dirname(posixpath.dirname(program))
    named = re.fullmatch(r"python(3\.\d{1,2})", posixpath.basename(program))
    versions = [found[1] for each in view.names(f"{prefix}/lib") if (found := _LIBRARY.fullmatch(each))]
    if named is not None:
        versions = [named[1]]
    versions = [each for each in versions if view.is_file(f"{prefix}/lib/python{each}/os.py")]
    if len(versions) != 1:
        return None
    version = versions[0]
    library = f"{prefix}/lib/python{version}"
    places = [f"{environment}/lib/python{version}/site-packages"] if is_virtual else []
    if not is_virtual or _has_system_sites(view, f"{environment}/pyvenv.cfg"):
        places += [f"{library}/{site}" for site in SITES]
        # Debian's: one directory for all versions, and one of the administrator's.
        places += [f"/usr/local/lib/python{version}/dist-packages", f"{prefix}/lib/python3/dist-packages"]
    sites = tuple(dict.fromkeys(each for each in places if view.is_directory(each)))
    tag = f"cpython-{version.replace('.', '')}"
    return Python(
        path=f"{directory}/{name}",
        program=program,
        version=version,
        libc=libc_of(view.start(program, _PROGRAM_START_BYTES)),
        prefix=prefix,
        sites=sites,
        awslambdaric=next((site for site in sites if view.is_file(f"{site}/awslambdaric/__init__.py")), ""),
        is_virtual=is_virtual,
        has_bytecode=view.is_file(f"{library}/__pycache__/os.{tag}.pyc"),
    )


def _has_system_sites(view: _View, path: str) -> bool:
    text = view.start(path, 4096).decode(errors="replace").lower().replace(" ", "")
    return "include-system-site-packages=true" in text


def libc_of(start: bytes) -> Libc:
    """Return the C library of a program, by its first bytes: the loader that its PT_INTERP names (elf(5))."""
    if not start.startswith(_ELF) or len(start) < 64:
        return "unknown"
    if start[4] != 2 or start[5] != 1:  # ELFCLASS64, ELFDATA2LSB
        return "unknown"
    offset = int.from_bytes(start[32:40], "little")
    size, count = int.from_bytes(start[54:56], "little"), int.from_bytes(start[56:58], "little")
    for number in range(min(count, 64)):
        header = start[offset + number * size :][:56]
        if len(header) < 56:
            return "unknown"
        if int.from_bytes(header[:4], "little") == 3:  # PT_INTERP
            at, length = (int.from_bytes(header[each : each + 8], "little") for each in (8, 32))
            loader = start[at : at + length].rstrip(b"\0")
            if b"ld-musl" in loader:
                return "musl"
            return "glibc" if b"ld-linux" in loader else "unknown"
    return "static"
