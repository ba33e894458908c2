"""Sources of an image's Python that have no bytecode, and the bytecode that the image's own Python has made of them.

An image's root is read-only, so that what has no valid .pyc is compiled anew at each start. `compile_jobs` names such sources;
a sandbox compiles them (`sockd.functions.in_images.image_compiler`); `add_bytecode` puts the answers into the tree. The
answers are foreign: they hold neither paths nor headers, which are made here from the tree, so that they decide only what the
image's own Python will run. Runs in the import process.
"""

from __future__ import annotations

import posixpath
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from sockd.base.file_tree import NO_DATA, FileTree, Inode, LayerData
from sockd.images.registry.bytecode import CACHE, HEADER, SUFFIX
from sockd.images.registry.image import ImageConfig
from sockd.images.registry.limits import Limits
from sockd.images.store.image_facts import SITES, ImageFacts, Python

MOST_SOURCES = 50_000
MOST_PATHS_BYTES = 6 << 20
"""The most bytes of the paths of all sources; they are one message."""
MOST_SOURCE_BYTES = 1 << 20
"""A larger source is left out, as are those with more directories above them than MOST_DEPTH."""
MOST_DEPTH = 32
MOST_BYTECODE_BYTES = 1 << 30
"""The most bytes of bytecode of one image."""
BATCH_BYTES, BATCH_SOURCES = 256 << 10, 64
"""The most bytes and number of sources that are compiled for one answer: the most, but a larger source is a batch of its
own."""
MAGIC_BYTES = 4
ELSEWHERE = ("PYTHONOPTIMIZE", "PYTHONPYCACHEPREFIX")
"""With these in its environment an image's Python reads bytecode under other names, and none is made."""
SIZE = struct.Struct("<I")
_OLDEST = 3, 8
_OF_VERSION = re.compile(r"python(3\.\d{1,2})")
_PRINTABLE = re.compile(r"[^\0-\x1f\x7f\ud800-\udfff]+")


class CompileJob(msgspec.Struct, frozen=True, kw_only=True):
    """Sources for one interpreter. Paths are absolute."""

    python: str
    cache_tag: str
    batches: tuple[tuple[str, ...], ...]

    @property
    def sources(self) -> int:
        return sum(map(len, self.batches))


class CompiledBatch(msgspec.Struct, frozen=True):
    """Where the answer for a batch is in the file of answers: the magic number, a SIZE for each source (0: it was left out), and
    their code, marshalled."""

    job: int
    batch: int
    offset: int
    size: int


def compile_jobs(
    tree: FileTree, data: LayerData, facts: ImageFacts, config: ImageConfig, limits: Limits
) -> tuple[CompileJob, ...]:
    """What is to be compiled; usually nothing. The image is only read.

    POLICY: for the Python of the image's command, else the first on its PATH, and for those of virtual environments: below their
    standard library and site-packages, and for the first one below WORKDIR, LAMBDA_TASK_ROOT and PYTHONPATH, too."""
    env = dict(each.partition("=")[::2] for each in config.env)
    if any(env.get(name) for name in ELSEWHERE):
        return ()
    by_version: dict[str, list[Python]] = {}
    for python in _pythons_in_use(facts):
        by_version.setdefault(python.version, []).append(python)
    jobs, seen = [], set[str]()
    room = _Room(min(MOST_SOURCES, (limits.max_files - len(tree)) // 2))
    for number, (version, pythons) in enumerate(by_version.items()):
        if tuple(map(int, version.split("."))) < _OLDEST:
            continue
        roots = [root for each in pythons for root in (f"{each.prefix}/lib/python{version}", *each.sites)]
        own = [] if number else [each for each in _code_roots(config) if each != "/"]
        tag = f"cpython-{version.replace('.', '')}"
        found = [
            path for path in _below(tree, roots, own, version) if path not in seen and _lacks(tree, data, path, tag)
        ]
        found = [path for path in found if room.take(path)]
        seen.update(found)
        if found:
            batches = tuple(_batches(found, tree))
            jobs.append(CompileJob(python=pythons[0].program, cache_tag=tag, batches=batches))
    return tuple(jobs)


def with_all_bytecode(tree: FileTree, jobs: Sequence[CompileJob], layer: int) -> FileTree:
    """The tree as it is if every source can be compiled; it has no data of bytecode, only its names. The other tree stays.

    Args: layer: of the bytecode."""
    full = dict(tree)
    for job in jobs:
        for path in (path for batch in job.batches for path in batch):
            _put(full, path.lstrip("/"), job.cache_tag, HEADER.size, (layer, 0))
    return full


def add_bytecode(
    tree: FileTree,
    jobs: Sequence[CompileJob],
    done: Iterable[CompiledBatch],
    read: Callable[[int, int], bytes],
    append: Callable[[bytes], tuple[int, int]],
    most_bytes: int,
) -> int:
    """Add the .pyc files to the tree; how many.

    Args: read: a part of the file of answers, by offset and size; append: stores bytes, and returns their layer and offset.
    Raises: OSError, EOFError, of both."""
    added = 0
    for each in done:
        job = jobs[each.job]
        paths = job.batches[each.batch]
        answer = read(each.offset, each.size)
        for path, code in zip(paths, codes_of(answer, len(paths)), strict=False):
            source = tree[path.lstrip("/")]
            head = HEADER.pack(answer[:MAGIC_BYTES], 0, source.mtime_s & 0xFFFFFFFF, source.size & 0xFFFFFFFF)
            most_bytes -= len(head) + len(code)
            if most_bytes < 0:
                return added
            if code:
                _put(tree, path.lstrip("/"), job.cache_tag, len(head) + len(code), append(head + code))
                added += 1
    return added


def codes_of(answer: bytes, count: int) -> list[bytes]:
    """The code of each source, empty of one that was left out; nothing of an answer that is malformed."""
    start = MAGIC_BYTES + count * SIZE.size
    if len(answer) < start or answer[2:MAGIC_BYTES] != b"\r\n":
        return []
    sizes = [size for (size,) in SIZE.iter_unpack(answer[MAGIC_BYTES:start])]
    if start + sum(sizes) != len(answer):
        return []
    codes = []
    for size in sizes:
        codes.append(answer[start : start + size])
        start += size
    return codes


def _pythons_in_use(facts: ImageFacts) -> list[Python]:
    first = next((each for each in facts.pythons if each.path == facts.command), None)
    chosen = first or next(iter(facts.pythons), None)
    virtual = [each for each in facts.pythons if each.is_virtual and each is not chosen]
    return [chosen, *virtual] if chosen is not None else []


def _code_roots(config: ImageConfig) -> list[str]:
    env = dict(each.partition("=")[::2] for each in config.env)
    roots = [config.working_dir, env.get("LAMBDA_TASK_ROOT", ""), *env.get("PYTHONPATH", "").split(":")]
    return [posixpath.normpath(each) for each in roots if each.startswith("/")]


def _below(tree: FileTree, roots: Sequence[str], own: Sequence[str], version: str) -> list[str]:
    """Sources that may be compiled, in the order of the roots, then of their paths; relative to the root."""
    rank = {root.strip("/"): number for number, root in reversed(list(enumerate([*roots, *own])))}
    found = []
    for path, inode in tree.items():
        if not path.endswith(".py") or not stat.S_ISREG(inode.mode) or inode.size > MOST_SOURCE_BYTES:
            continue
        place = _root_of(path, rank)
        if place is not None and inode.mode & 0o004 and _may_be_imported(path, place, version):
            found.append((rank[place], path))
    return [path for _, path in sorted(found)]


def _root_of(path: str, rank: dict[str, int]) -> str | None:
    """The deepest root above a path."""
    directory = posixpath.dirname(path)
    while directory:
        if directory in rank:
            return directory
        directory = posixpath.dirname(directory)
    return None


def _may_be_imported(path: str, root: str, version: str) -> bool:
    directories = path.removeprefix(f"{root}/").split("/")[:-1]
    is_library = posixpath.basename(root) == f"python{version}"
    others = (*SITES, "test") if is_library else ()  # test: of Python itself, and a fourth of its sources
    versions = (found[1] for each in directories if (found := _OF_VERSION.fullmatch(each)))
    return (
        len(directories) < MOST_DEPTH
        and CACHE not in directories
        and not (directories and directories[0] in others)
        and all(each == version for each in versions)
        and _PRINTABLE.fullmatch(path) is not None
    )


def cached_path(path: str, tag: str) -> str:
    """Return the path of a source's bytecode (PEP 3147)."""
    directory, name = posixpath.split(path)
    return posixpath.join(directory, CACHE, f"{name.removesuffix('.py')}.{tag}{SUFFIX}")


def _lacks(tree: FileTree, data: LayerData, path: str, tag: str) -> bool:
    """Whether a source has no bytecode that Python would use, and there can be some."""
    cached = cached_path(path, tag)
    directory = tree.get(posixpath.dirname(cached))
    if directory is not None and not stat.S_ISDIR(directory.mode):
        return False
    found = tree.get(cached)
    if found is None:
        return True
    if not stat.S_ISREG(found.mode):
        return False
    if found.layer == NO_DATA or found.size <= HEADER.size:
        return True
    _, flags, time_s, size = HEADER.unpack(data.read(found.layer, found.offset, HEADER.size))
    source = tree[path]
    # Other flags: it is validated by the source's hash, or not at all.
    return bool(flags == 0 and (time_s != source.mtime_s & 0xFFFFFFFF or size != source.size & 0xFFFFFFFF))


class _Room:
    """What one message can name."""

    def __init__(self, sources: int) -> None:
        self._sources = sources
        self._bytes = MOST_PATHS_BYTES

    def take(self, path: str) -> bool:
        self._sources -= 1
        self._bytes -= len(path.encode()) + 8
        return self._sources >= 0 and self._bytes >= 0


def _batches(paths: Sequence[str], tree: FileTree) -> Iterator[tuple[str, ...]]:
    batch: list[str] = []
    size = 0
    for path in paths:
        if batch and (len(batch) == BATCH_SOURCES or size + tree[path].size > BATCH_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(f"/{path}")
        size += tree[path].size
    if batch:
        yield tuple(batch)


def _put(tree: FileTree, path: str, tag: str, size: int, place: tuple[int, int]) -> None:
    source = tree[path]
    cached = cached_path(path, tag)
    directory = posixpath.dirname(cached)
    if directory not in tree:
        above = tree[posixpath.dirname(directory)]
        tree[directory] = Inode(mode=stat.S_IFDIR | 0o755, mtime_s=above.mtime_s)
    tree[cached] = Inode(
        mode=stat.S_IFREG | 0o644, mtime_s=source.mtime_s, size=size, layer=place[0], offset=place[1]
    )  # a new inode: the stale one may have other names
